import pytest
import torch

from crossclr.training.run_config import TrainingConfig
from crossclr.training.torch_settings import torch_settings


def product() -> float:
    return (torch.full((64,), 1e-40) * 0.5).abs().sum().item()


@pytest.fixture(autouse=True)
def _restored():
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("before", [False, True])
def test_numbers_too_small_for_full_speed_are_zero_while_a_run_trains(before):
    if not torch.set_flush_denormal(before):
        pytest.skip("this CPU cannot round them to zero")
    with torch_settings(TrainingConfig()):
        assert product() == 0
        assert (torch.tensor(1e-30) * 1e-5).item() == pytest.approx(1e-35)  # the smallest normal number is 1.2e-38
    assert (product() == 0) is before


def test_settings_are_restored_after_an_error():
    def settings():
        return torch.get_num_threads(), torch.get_deterministic_debug_mode(), product() == 0

    def fail():
        with torch_settings(TrainingConfig(threads=before[0] + 1)):
            inside.append(settings())
            raise KeyError("in a run")

    before, inside = settings(), []
    with pytest.raises(KeyError, match="in a run"):
        fail()
    assert settings() == before
    assert inside == [(before[0] + 1, 1, True)]
