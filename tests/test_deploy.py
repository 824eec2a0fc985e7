"""The container and compose files: their syntax, and that the commands in them exist. They are not run here."""

from pathlib import Path

import yaml

from crossclr.cli import COMMANDS

DEPLOY = Path(__file__).parents[1] / "deploy"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def test_the_container_file_has_known_instructions():
    lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    assert lines[0].startswith("FROM ")


def test_the_compose_file_starts_a_command_of_ours_with_the_volumes_it_names():
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    command = content["services"]["search"]["command"]
    assert command[0] in COMMANDS
    build = content["services"]["search"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    named = {volume.split(":")[0] for one in content["services"].values() for volume in one["volumes"]}
    assert set(content["volumes"]) <= named
    assert set(content["services"]["search"]["secrets"]) == set(content["secrets"])
