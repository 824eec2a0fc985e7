"""Two modalities with everything present train exactly as the two-sided code did that named modalities replaced.

The fixture holds the digest of the weights, the losses and the metrics of short runs of that code. Digests depend on
the processor and on torch, so they are compared only where both are those of the fixture, and not for MIL-NCE and
MaxMargin, whose sums now have another order; losses are compared always.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from crossclr import api
from crossclr.training.config_files import check_config

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "trained_two_modalities.json").read_text())
MLP = {"kind": "mlp", "blocks": 1, "dropout": 0.3, "input_dropout": 0.1}
UNLIMITED = {"name": "crossclr", "min_effective": 0.0}  # weights had no limit then
TWO_LEVEL = {
    "data": {"kind": "emoji", "two_level": True},
    "model": {
        "dim": 8,
        "encoder": {"kind": "transformer", "heads": 2, "dropout": 0.1},
        "global_encoder": {"heads": 2},
    },
    "training": {"epochs": 1, "batch_size": 64, "accelerator": "cpu", "log_every": 100, "workers": 0},
}


def values(seed, local=None, **changes):
    training = {"epochs": 2, "batch_size": 256, "accelerator": "cpu", "in_memory": True, "log_every": 100, "workers": 0}
    return {
        "seed": seed,
        "data": {"kind": "emoji"},
        "model": {"dim": 16, "encoder": MLP, "encoders": {"text": {"row_dropout": 0.1}}},
        "loss": {"local": local or {**UNLIMITED, "temperature": 0.1, "queue_size": 300}, "global": None},
        "optimiser": {"learning_rate": 0.003},
        "schedule": {"name": "cosine", "warmup_epochs": 1},
        **changes,
        "training": {**({} if "data" in changes else training), **changes.get("training", {})},
    }


CASES = {
    "crossclr": values(0),
    "crossclr-seed-1": values(1),
    "clip-from-disk": values(2, {"name": "clip"}, training={"epochs": 1, "in_memory": False, "workers": 1}),
    "milnce": values(3, {"name": "milnce"}),
    "maxmargin": values(4, {"name": "maxmargin"}),
    "two-level": values(5, **TWO_LEVEL, loss={"local": {**UNLIMITED, "queue_size": 300}, "global": UNLIMITED}),
    "two-level-coot": values(6, **TWO_LEVEL, loss={"local": {"name": "coot"}, "global": None}),
    "micro-batch": values(7, training={"epochs": 1, "micro_batch": 100, "in_memory": False}),
}


def made_here():
    found = Path("/proc/cpuinfo")
    lines = found.read_text().splitlines() if found.is_file() else []
    cpu, flags = (
        next((line.split(":")[1].strip() for line in lines if line.startswith(name)), "")
        for name in ("model name", "flags")
    )
    digest = hashlib.sha256(flags.encode()).hexdigest()[:16]
    return FIXTURE["made_with"] == {"cpu": cpu, "torch": torch.__version__, "flags": digest}


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_that_of_the_two_sided_code(case, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = api.train(check_config(CASES[case]), out=tmp_path / "run", baseline=False)
    finally:
        torch.set_num_threads(threads)
    expected = FIXTURE["cases"][case]
    losses = [record["loss"] for record in run.metrics() if record["kind"] == "epoch"]
    assert losses == pytest.approx(expected["losses"], rel=1e-4)
    found = run.results["test"]
    assert found.keys() == expected["test"].keys()
    if made_here() and "weights" in expected:
        digest = hashlib.sha256()
        for weight in run.load_model("last").state_dict().values():
            digest.update(weight.contiguous().numpy().tobytes())
        assert digest.hexdigest() == expected["weights"]
        assert losses == expected["losses"]
        assert found == expected["test"]
