import typing

import pytest
import yaml
from pydantic import BaseModel

from crossclr.data.config import StrictConfig
from crossclr.estimator import JointEmbedding
from crossclr.training import ConfigError, RunConfig, config_names, dump_config, load_config
from crossclr.training.config_files import _models_in, check_config, describe_config
from crossclr.training.run_config import TermConfig

SHIPPED = [
    "activitynet",
    "emoji",
    "emoji-experts",
    "lsmdc",
    "lsmdc-ce",
    "lsmdc-experts",
    "msrvtt-ce",
    "msvd",
    "msvd-ce",
    "youcook2-100m",
    "youcook2-100m-coot",
    "youcook2-100m-tuned",
    "youcook2-2d3d",
    "youcook2-spoken",
]


def test_the_promised_configs_are_there():
    assert config_names() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_hold_and_come_back_from_yaml(name, tmp_path):
    config = load_config(name)
    assert config.name == name
    assert config.about
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config
    (tmp_path / "described.yaml").write_text(describe_config(config))
    assert load_config(tmp_path / "described.yaml") == config


def test_the_papers_settings():
    """The appendix table, with its typographical slips resolved."""
    for name, queue, weight, scale, dim in [
        ("youcook2-100m", 0, 0.8, 0.0035, 384),
        ("lsmdc", 3000, 0.65, 0.0055, 768),
    ]:
        config = load_config(name)
        local, above = config.loss.local.options, config.loss.global_.options
        assert (local["queue_size"], above["queue_size"]) == (queue, 0)
        assert local["intra_weight"] == above["intra_weight"] == weight
        assert local["weight_scale"] == above["weight_scale"] == scale
        assert local["temperature"] == above["temperature"] == 0.03
        assert local["prune_threshold"] == 0.9
        assert config.loss.global_weight == 0.6
        assert config.model.dim == dim
        assert (config.optimiser.name, config.optimiser.learning_rate) == ("radam", 7e-4)
        assert (config.optimiser.betas, config.optimiser.epsilon) == ((0.56, 0.98), 1.5e-9)
        assert (config.schedule.warmup_epochs, config.schedule.patience, config.schedule.cooldown) == (4, 6, 4)
        assert (config.training.epochs, config.training.batch_size, config.validation.first_epoch) == (40, 64, 3)
        assert config.training.gradient_clip == 2.0  # not the paper's: the loss jumped without it


def test_the_tuned_config_changes_the_papers_in_three_places():
    changes = ["schedule.early_stop=12"]
    for level in ("local", "global"):
        changes += [f"loss.{level}.temperature=0.06", f"loss.{level}.intra_weight=0.475"]
    tuned, paper = load_config("youcook2-100m-tuned"), load_config("youcook2-100m", changes)
    assert tuned == paper.model_copy(update={"name": tuned.name, "about": tuned.about})


def test_coots_own_settings():
    config = load_config("youcook2-100m-coot")
    assert config.loss.local.name == "coot"
    assert (config.optimiser.learning_rate, config.training.epochs, config.schedule.early_stop) == (9e-4, 100, 16)
    assert (config.schedule.warmup_epochs, config.schedule.patience, config.schedule.cooldown) == (0, 5, 3)


def test_another_recipe_brings_its_own_loss_and_the_same_recipe_keeps_the_config():
    default, paper = load_config("emoji"), load_config("emoji", ["loss.local.queue_size=50", "recipe=paper"])
    assert (default.recipe, default.loss.local.name) == ("best", "clip")
    assert (paper.recipe, paper.loss.local.name) == ("paper", "crossclr")
    assert paper.loss.local.options == {"temperature": 0.1, "queue_size": 50}  # changes come after the recipe
    assert load_config("emoji", {"recipe": "best"}) == default
    shipped = load_config("youcook2-100m")
    assert load_config("youcook2-100m", ["recipe=paper"]) == shipped
    assert load_config("youcook2-100m", ["recipe=best"]).loss == default.loss


def test_the_default_is_a_recipe_and_the_papers_method_is_named():
    recipes = {name: load_config(name).recipe for name in config_names()}
    assert recipes.pop("emoji") == JointEmbedding().recipe == "best"
    assert set(recipes.values()) == {"paper"}


def test_without_validation_the_rate_falls_along_a_cosine_and_the_config_says_so():
    data = {"kind": "coot", "video": "v.h5", "text": "t.h5"}
    for recipe, expected in (("best", "cosine"), ("closed-form", "cosine"), ("paper", "plateau")):
        config = check_config({"recipe": recipe, "data": data, "schedule": {"warmup_epochs": 2}})
        assert (config.schedule.name, config.schedule.warmup_epochs) == (expected, 2)
        assert yaml.safe_load(dump_config(config))["schedule"]["name"] == expected
    assert check_config({"data": data, "schedule": {"name": "constant"}}).schedule.name == "constant"


def test_overrides_are_yaml():
    config = load_config(
        "emoji",
        [
            "training.epochs=3",
            "optimiser.learning_rate=7e-4",
            "optimiser.betas=[0.5, 0.9]",
            "loss.local={name: clip, temperature: 5e-2}",
            "splits.test=null",
        ],
    )
    assert (config.training.epochs, config.optimiser.learning_rate, config.optimiser.betas) == (3, 7e-4, (0.5, 0.9))
    assert config.loss.local.options == {"temperature": 0.05}
    assert config.splits.test is None
    assert load_config("emoji", {"training.epochs": 4}).training.epochs == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.local.tempreature=0.1", "loss.local: crossclr has no option 'tempreature'; did you mean 'temperature'?"),
        ("loss.local.temperature=-1", "temperature"),
        ("loss.local.name=croscclr", "did you mean 'crossclr'?"),
        ("trainnig.epochs=3", "trainnig is not a field; did you mean 'training'?"),
        ("training.epoch=3", "training.epoch is not a field; did you mean 'epochs'?"),
        ("training.epochs=many", "training.epochs: "),
        ("model.encoder.dropuot=0", "model.encoder.dropuot is not a field; did you mean 'dropout'?"),
        ("data.kind=cooot", "data: "),
        ("data.modalities.text=txet", "data.modalities.text: "),
        ("optimiser.betas=[1.0, 0.9]", "optimiser.betas: both betas must lie in [0, 1)"),
        ("validation.select_by=R@1", "validation.select_by: expected level/metric"),
        ("validation.select_by=video/R@1", "loss.global is null"),
        ("loss.global={name: coot}", "coot covers all levels"),
        ("training.devices=1000", "training.batch_size must be at least training.devices"),
        ("name=a/b", "name: "),
        ("training.epochs.deep=3", "override training.epochs.deep: training.epochs is a single value"),
        ("training.epochs", "an override looks like a.b=value"),
        ("training.epochs=[", "cannot be read as YAML"),
    ],
)
def test_faults_are_named_with_their_place(override, message):
    with pytest.raises(ConfigError) as caught:
        load_config("emoji", ["recipe=paper", override])
    assert message in str(caught.value)
    assert "\n" not in message


def test_all_faults_at_once():
    with pytest.raises(ConfigError) as caught:
        load_config("emoji", ["training.epochs=0", "optimizer.x=1", "loss.local.tempreature=1"])
    for part in ("training.epochs", "optimizer is not a field", "'tempreature'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("override", ["training.epochs=true", "seed=true", "optimiser.learning_rate=true"])
def test_true_is_no_number(override):
    with pytest.raises(ConfigError, match=f"{override.partition('=')[0].split('.')[-1]} needs a number, got true"):
        load_config("emoji", [override])


@pytest.mark.parametrize(
    ("name", "message"),
    [("youcook", "did you mean 'youcook2"), ("nothere.yaml", "no config file"), ("zzz", "there are: activitynet")],
)
def test_absent_configs(name, message):
    with pytest.raises(ConfigError, match=message):
        load_config(name)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "cannot be read as YAML"), ("- 1", "must hold a mapping"), ("", "mapping")]
)
def test_broken_files(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "c.yaml")


def test_missing_data_is_named(tmp_path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"name": "x"}))
    with pytest.raises(ConfigError, match="data is missing"):
        load_config(tmp_path / "c.yaml")


def all_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            found |= all_models(inner)
    return found


def test_every_field_has_a_sentence():
    models = all_models(RunConfig)
    assert len(models) > 10
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            assert field.description.endswith("."), f"{model.__name__}.{name}"


def test_type_hints_can_be_resolved():
    assert typing.get_type_hints(RunConfig)["seed"] is int


def test_every_section_is_strict():
    for section in all_models(RunConfig):
        rules = section.model_config
        assert issubclass(section, StrictConfig), section
        assert (rules["frozen"], rules["allow_inf_nan"]) == (True, False), section
        assert rules["extra"] == ("allow" if section is TermConfig else "forbid"), section
