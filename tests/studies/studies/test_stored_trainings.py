"""Runs of a study are named by what decides them."""

from crossclr.studies import EXPERIMENTS, open_study
from crossclr.studies.trainings import digest
from crossclr.training import RunConfig, load_config
from tests.studies.conftest import write_study


class Later(RunConfig):
    """A config of a later version, which has one part more."""

    later: int | None = None


def test_a_part_that_a_later_version_adds_changes_no_name():
    values = load_config("emoji").model_dump(by_alias=True)
    plain = RunConfig.model_validate(values)
    assert digest(Later.model_validate(values)) == digest(plain)
    assert digest(Later.model_validate({**values, "later": 1})) != digest(plain)


def test_what_decides_a_run_changes_its_name():
    plain = load_config("emoji")
    names = {digest(plain)}
    for key, value in (
        ("loss.local.prune_threshold", None),
        ("data.modalities.image", "fluent"),
    ):
        names.add(digest(load_config("emoji", {key: value})))
    assert len(names) == 3
    assert digest(plain.model_copy(update={"seed": 7})) == digest(plain)


def test_an_ablation_of_fewer_seeds(tmp_path):
    study = open_study(write_study(tmp_path / "data", ablation_seeds=1), tmp_path / "out")
    study.given = {"crossclr": {}}
    assert {tuple(variant.seeds) for variant in EXPERIMENTS["ablation"].variants(study)} == {(0,)}
