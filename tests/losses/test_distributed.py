"""Several processes with a part of the batch each compute what one process computes with all of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crossclr.losses import CLIP, Distributed, distributed
from tests.losses.processes_of_test_distributed import CASES, COUNTS, STEPS, results

SCRIPT = Path(__file__).with_name("processes_of_test_distributed.py")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """What each process found: {"world case": values}, for four processes; the first two also form a world of two."""
    folder = tmp_path_factory.mktemp("processes")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT)]
    started = [
        subprocess.Popen([*command, str(rank), "4", str(folder)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 4, "\n".join(errors)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(4)]


@pytest.fixture(scope="module")
def alone():
    return {case: results(case, 1) for case in CASES}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_values_gradients_and_queues_are_those_of_one_process(many, alone, case, world):
    for rank in range(world):
        assert_equal(many[rank][f"{world} {case}"], alone[case])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_every_process_holds_the_same_bits(many, case, world):
    first = many[0][f"{world} {case}"]
    for rank in range(1, world):
        for name, value in many[rank][f"{world} {case}"].items():
            assert torch.equal(value, first[name]), name


def test_the_cases_reach_what_they_are_for(alone):
    for case, found in alone.items():
        assert all(float(found[f"gradient {step} a"].abs().max()) > 0 for step in range(STEPS - 1)), case
    assert "gradient 0 loss.log_scale" in alone["clip"]
    assert "gradient 0 loss.bias" in alone["siglip"]
    assert int(alone["crossclr queue"]["buffer loss.queues.a.written"]) == sum(counts[0] for counts in COUNTS[1])


def test_a_wrong_order_of_rows_would_be_found(many, alone):
    with pytest.raises(AssertionError):
        assert_equal(many[0]["4 wrong order"], alone["crossclr queue"])


def test_anchors_are_shared_out_once_and_evenly(monkeypatch):
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda group: 3)
    for count in (0, 1, 5, 64):
        shares = []
        for rank in range(3):
            monkeypatch.setattr(distributed.dist, "get_rank", lambda group, rank=rank: rank)
            shares.append(range(*distributed.rows_of_process(count, None)))
        assert [row for share in shares for row in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_shares_with_nobody():
    assert distributed.process_group() is None


def test_an_unknown_way_to_combine_is_told():
    with pytest.raises(ValueError, match="combined_by must be 'mean' or 'sum', got 'average'"):
        Distributed(CLIP(), combined_by="average")
