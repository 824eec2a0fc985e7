import json

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crossclr import api
from crossclr.data import batches, open_data
from crossclr.models import build_model
from crossclr.training import ConfigError, JointTraining, Run, TrainingError
from crossclr.training.config_files import check_config
from crossclr.training.joint_training import selection_score
from crossclr.training.objective import Objective
from crossclr.training.optimiser import build_optimiser, build_schedule
from crossclr.training.processes import make_fabric
from crossclr.training.run_config import OptimiserConfig, ScheduleConfig


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_loop_is_the_plain_recipe_written_out(tiny, tmp_path):
    """The weights after two epochs equal those of a loop by hand: same batches, loss, rates and steps."""
    tiny["training"].update(epochs=2, gradient_clip=0.5)
    tiny["schedule"]["warmup_epochs"] = 2
    config = check_config(tiny)
    run = api.train(config, out=tmp_path / "run", baseline=False)
    source = open_data(config.data)
    torch.manual_seed(config.seed)
    model = build_model(config.model, source.dims, two_level=True)
    objective = Objective(config.loss)
    optimiser = build_optimiser(config.optimiser, model)
    losses = []
    for epoch in range(2):
        for group in optimiser.param_groups:
            group["lr"] = config.optimiser.learning_rate * (epoch + 1) / 2
        for batch in batches(source.where(split="train"), 4, seed=config.seed, epoch=epoch, workers=0):
            model.train()
            loss = objective(model(batch), batch)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()
            losses.append(loss.item())
    for name, weight in run.load_model("last").state_dict().items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=1e-4, atol=1e-7, msg=name)
    records = run.metrics()
    assert [record["loss"] for record in records if record["kind"] == "step"] == pytest.approx(losses, rel=1e-5)
    means = [record["loss"] for record in records if record["kind"] == "epoch"]
    assert means == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:])])


def test_run_folder_says_everything(tiny, tmp_path):
    run = api.train(check_config(tiny), out=tmp_path / "run")
    assert sorted(path.name for path in run.path.iterdir()) == [
        "README.md",
        "best",
        "checksums.json",
        "config.yaml",
        "data.json",
        "environment.json",
        "last",
        "metrics.jsonl",
        "model.json",
        "results.json",
        "tensorboard",
    ]
    assert json.loads((run.path / "environment.json").read_text())["packages"]["torch"] == torch.__version__
    again = Run.open(run.path)
    assert again.config == run.config
    assert again.open_data().dims == again.load_model().dims == {"video": 6, "text": 5}
    epochs = [record for record in run.metrics() if record["kind"] == "epoch"]
    assert "score" not in epochs[0]  # validated from epoch 1 on
    best = max(epochs[1:], key=lambda record: record["score"])
    assert run.results["best_epoch"] == best["epoch"]
    assert run.results["validation"] == best["validation"]
    # the test split is the validation split here, so the kept weights must give the figures of the best epoch
    flat = {f"{name}/{key}": value for name, found in run.results["test"].items() for key, value in found.items()}
    assert flat == pytest.approx(best["validation"])
    assert set(run.results["cca_baseline"]) == set(run.results["test"]) == {
        "clip/video->text", "clip/text->video", "video/video->text", "video/text->video"
    }  # fmt: skip


def test_tensorboard_reads_the_events_and_hides_what_was_repeated(tiny, tmp_path, monkeypatch):
    tiny["training"]["epochs"] = 2
    plain = JointTraining.step

    def cut(self, batch):
        if self.position.step == 6:
            raise RuntimeError
        return plain(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(JointTraining, "step", cut)
        with pytest.raises(RuntimeError):
            api.train(check_config(tiny), out=tmp_path / "run")
    run = api.resume(tmp_path / "run")
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("step/loss")]
    expected = [(record["step"], record["loss"]) for record in run.metrics() if record["kind"] == "step"]
    assert [step for step, _ in shown] == [step for step, _ in expected]
    np.testing.assert_allclose([value for _, value in shown], [value for _, value in expected], rtol=1e-6)


def test_one_level_is_trained_where_there_is_no_global_loss(tiny, tmp_path):
    tiny["loss"]["global"] = None
    tiny["training"]["epochs"] = 2
    run = api.train(check_config(tiny), out=tmp_path / "run")
    assert not run.load_model().two_level
    assert set(run.results["test"]) == {"clip/video->text", "clip/text->video"} == set(run.results["cca_baseline"])


@pytest.mark.parametrize("loss", ["coot", "siglip"])
def test_other_losses_train(tiny, tmp_path, loss):
    tiny["loss"] = {"local": {"name": loss}}
    tiny["training"]["epochs"] = 2
    run = api.train(check_config(tiny), out=tmp_path / "run", baseline=False)
    losses = [record["loss"] for record in run.metrics() if record["kind"] == "step"]
    assert len(losses) == 8
    assert np.isfinite(losses).all()


def test_mixed_precision_stays_close_and_keeps_float32_weights(tiny, tmp_path):
    tiny["training"]["epochs"] = 1
    exact = api.train(check_config(tiny), out=tmp_path / "exact", baseline=False)
    tiny["training"]["precision"] = "bf16-mixed"
    mixed = api.train(check_config(tiny), out=tmp_path / "mixed", baseline=False)
    first = [run.metrics()[0]["loss"] for run in (exact, mixed)]
    assert first[0] != first[1]
    assert first[0] == pytest.approx(first[1], rel=0.05)
    assert {weight.dtype for weight in mixed.load_model("last").state_dict().values()} == {torch.float32}


def test_early_stop_ends_the_run(tiny, tmp_path):
    tiny["schedule"] = {"name": "constant", "warmup_epochs": 0, "early_stop": 1}
    tiny["training"]["epochs"] = 50
    tiny["optimiser"]["learning_rate"] = 1e-12  # nothing improves after the first validation
    run = api.train(check_config(tiny), out=tmp_path / "run", baseline=False)
    assert run.results["epochs"] == 3
    assert run.results["best_epoch"] == 1


def test_without_validation_the_last_epoch_is_kept(tiny, tmp_path):
    tiny["splits"].update(validate=None, test=None)
    tiny["training"]["epochs"] = 1
    run = api.train(check_config(tiny), out=tmp_path / "run")
    assert run.results["test"] is None
    best, last = run.load_model("best").state_dict(), run.load_model("last").state_dict()
    assert all(torch.equal(best[name], last[name]) for name in last)


def test_a_loss_that_is_no_number_stops_with_advice(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Objective, "forward", lambda self, *_: torch.tensor(float("nan"), requires_grad=True))
    with pytest.raises(TrainingError, match=r"the loss is nan at step 0 \(epoch 0\); lower optimiser.learning_rate"):
        api.train(check_config(tiny), out=tmp_path / "run")


def test_global_loss_needs_two_levels(tiny, tmp_path):
    tiny["data"]["two_level"] = False
    with pytest.raises(TrainingError, match="needs data of two levels"):
        api.train(check_config(tiny), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("clip/text->image/R@1", "no direction 'clip/text->image'; choose clip/text->video or"), ("clip/R@2", "'R@2'")],
)
def test_selection_by_what_the_data_lacks_writes_nothing(tiny, tmp_path, name, message):
    tiny["validation"] = {**tiny.get("validation", {}), "select_by": name}
    with pytest.raises(ConfigError, match=message):
        api.train(check_config(tiny), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_selection_metrics():
    metrics = {
        "clip/video->text/R@1": 1.0,
        "clip/text->video/R@1": 2.0,
        "clip/text->video/R@10": 7.0,
        "video/video->text/R@1": 9.0,
    }
    assert selection_score(metrics, "clip/R@1") == 1.5
    assert selection_score(metrics, "clip/text->video/R@10") == 7.0
    with pytest.raises(TrainingError, match="select_by is 'clip/R@2'"):
        selection_score(metrics, "clip/R@2")


def test_biases_are_spared_weight_decay():
    layer = torch.nn.Linear(3, 2)
    for name in ("radam", "adam", "adamw"):
        optimiser = build_optimiser(OptimiserConfig(name=name, weight_decay=0.3), layer)
        decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
        assert decay == {id(layer.weight): 0.3, id(layer.bias): 0.0}
        assert type(optimiser).__name__.lower() == name


def test_schedules_by_name():
    plateau = build_schedule(ScheduleConfig(patience=2, cooldown=1, factor=0.5, early_stop=7), 40)
    assert (plateau.patience, plateau.cooldown, plateau.factor_on_plateau, plateau.early_stop) == (2, 1, 0.5, 7)
    assert build_schedule(ScheduleConfig(name="cosine", final_factor=0.1), 40).factor(40) == pytest.approx(0.1)
    assert build_schedule(ScheduleConfig(name="constant", warmup_epochs=0), 40).factor(30) == 1.0


def test_a_run_trained_by_two_processes_is_resumed_by_one(tiny, tmp_path):
    config = check_config(tiny)
    training = JointTraining(config, open_data(config.data).where(split="train"), make_fabric("cpu"))
    state = training.state_dict()
    state["random_of_processes"] = torch.cat([state["random_of_processes"]] * 2)
    states = []
    for seed in (0, 1):  # dropout depends on the run and the step, not on what was drawn before
        torch.manual_seed(seed)
        training.load_state_dict(training.model.state_dict(), state)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_the_last_epoch_is_always_validated(tiny, tmp_path):
    tiny["training"]["epochs"] = 4
    tiny["validation"].update(first_epoch=0, every=3)
    run = api.train(check_config(tiny), out=tmp_path / "run", baseline=False)
    epochs = [record for record in run.metrics() if record["kind"] == "epoch"]
    assert [record["epoch"] for record in epochs if "score" in record] == [0, 3]
