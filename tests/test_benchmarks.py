"""The command line of the benchmarks; the measurements themselves are not tests."""

import pytest

from benchmarks.__main__ import USUAL, available, parse


def test_help_lists_every_benchmark(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (title, _) in available().items():
        assert any(line.split()[:1] == [name] and title and title in line for line in lines), name


def test_the_usual_benchmarks_exist():
    assert {name for name, (_, runs) in available().items() if runs} >= set(USUAL)
    assert parse([]) == list(USUAL)
    assert parse(["startup", "ranks"]) == ["startup", "ranks"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [("statup", "there is no benchmark 'statup'; there are:"), ("moments", "python -m benchmarks.moments")],
)
def test_a_name_that_cannot_be_run(name, advice, capsys):
    with pytest.raises(SystemExit) as stop:
        parse([name])
    assert stop.value.code == 2
    assert advice in capsys.readouterr().err
