import json
import math

import pytest

from crossclr.training.optimiser import Cosine, Plateau, Schedule
from tests.support.references import coot_arrays


@pytest.fixture(scope="module")
def reference():
    return coot_arrays()


@pytest.mark.parametrize("name", ["main", "main_valstart3", "flat", "falling"])
def test_plateau_equals_coots(reference, name):
    part = {
        key.rsplit("/", 1)[1]: reference[key] for key in reference if key.startswith(f"schedule/{name}/")
    }  # fmt: skip
    schedule = Plateau(warmup_epochs=4, patience=6, cooldown=4)
    for epoch in range(40):
        assert 7e-4 * schedule.factor(epoch) == pytest.approx(part["lr"][epoch], rel=1e-9)
        if part["is_val"][epoch]:
            assert schedule.observe(epoch, float(part["scores"][epoch])) == part["improved"][epoch]
        counters = (schedule.bad_epochs, schedule.cooling, schedule.reductions)
        expected = (part["bad_epochs_after"][epoch], part["cooldown_after"][epoch], part["reductions_after"][epoch])
        assert counters == expected
        schedule.load_state_dict(json.loads(json.dumps(schedule.state_dict())))
    assert 7e-4 * schedule.factor(40) == pytest.approx(float(part["lr_after_last_epoch"]), rel=1e-9)


@pytest.mark.parametrize(("name", "stop"), [("main", None), ("falling", 20), ("flat", 17)])
def test_early_stop_equals_coots(reference, name, stop):
    schedule = Plateau(warmup_epochs=4, patience=6, cooldown=4, early_stop=16)
    for epoch in range(40):
        if schedule.stops_before(epoch):
            assert epoch == stop
            return
        if reference[f"schedule/{name}/is_val"][epoch]:
            schedule.observe(epoch, float(reference[f"schedule/{name}/scores"][epoch]))
    assert stop is None


def test_a_gain_below_the_threshold_is_no_improvement():
    schedule = Schedule()
    assert schedule.observe(0, 0.5)
    assert not schedule.observe(1, 0.50004)
    assert schedule.observe(2, 0.51)
    assert (schedule.best_epoch, schedule.best_score) == (2, 0.51)


def test_cosine_is_half_a_cosine_after_the_ramp():
    schedule = Cosine(warmup_epochs=2, epochs=10, final_factor=0.1)
    assert [schedule.factor(0), schedule.factor(1), schedule.factor(2)] == [0.0, 0.5, 1.0]
    for epoch, progress in [(3, 0.0), (6, 0.25), (9, 0.9)]:
        expected = 0.1 + 0.9 * math.cos(math.pi / 2 * (epoch + progress - 2) / 8) ** 2
        assert schedule.factor(epoch, progress) == pytest.approx(expected)
    assert schedule.factor(10) == pytest.approx(0.1)


def test_constant_rate_with_warm_up():
    assert [Schedule(warmup_epochs=2).factor(epoch) for epoch in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert [Schedule().factor(epoch) for epoch in range(2)] == [1.0, 1.0]
