"""Studies: the shipped ones are valid, faults are named, and a run config is enough."""

import pytest
import yaml

from crossclr.studies import load_study, open_study
from crossclr.studies.experiments import ModalityPairs
from crossclr.studies.paper_numbers import paper_table
from crossclr.studies.study_config import METHODS, base_config, configure, study_names, with_overrides
from crossclr.training import ConfigError, load_config


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_are_valid(name, tmp_path):
    study = load_study(name)
    base = base_config(study)
    if study.trials == 0:  # the paper's own setting: nothing is tuned, so COOT's protocol with one split is allowed
        assert {METHODS[method].title for method in study.methods} == set(paper_table("losses", name).rows)
    else:
        assert len(study.seeds) >= 5 or name == "youcook2-spoken-two-level"
        assert base.splits.validate_ != base.splits.test
        paper = {"CrossCLR", "MaxMargin", "MIL-NCE", "CLIP", "DCL", "NT-Xent"}  # its Table 1
        titles = {METHODS[method].title for method in study.methods}
        assert paper <= titles or name == "youcook2-spoken-two-level"
    for method in METHODS.values():
        configure(base, method)
    for option, values in study.sweeps.items():
        for value in values:
            configure(base, METHODS["crossclr"], {option: value})
    pairs = ModalityPairs()
    opened = open_study(name, tmp_path, trials=0)
    for pair in pairs.pairs(opened):
        pairs.variant(opened, pair, "crossclr")
    for changes in (*study.experts.values(), *study.joined_experts.values()):
        with_overrides(base, changes)


def test_overrides_come_last():
    study = load_study("emoji")
    assert base_config(study, ["training.epochs=3"]).training.epochs == 3
    assert base_config(study, ["training.epochs=3"]).model.dim == base_config(study).model.dim


def test_a_run_config_is_enough(tmp_path):
    assert load_study("youcook2-100m").config == "youcook2-100m"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"data": {"kind": "emoji"}}))
    assert base_config(load_study(path)).data.kind == "emoji"


def test_both_levels_get_the_loss():
    base = load_config("lsmdc")
    two = configure(base, METHODS["crossclr"], {"temperature": 0.2})
    assert two.loss.local.options["queue_size"] > 0
    assert two.loss.global_.options["queue_size"] == 0
    assert two.loss.global_.options["temperature"] == 0.2
    own = with_overrides(base, {"loss.global.prune_by": "quantile", "loss.local.prune_by": "relative"})
    assert configure(own, METHODS["crossclr"]).loss.global_.options["prune_by"] == "quantile"
    assert configure(own, METHODS["crossclr"]).loss.local.options["prune_by"] == "relative"
    assert configure(base, METHODS["clip"]).loss.global_.name == "clip"
    assert configure(base, METHODS["coot"]).loss.global_ is None


def test_faults_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no study 'emojy'"):
        load_study("emojy")
    path = tmp_path / "bad.yaml"
    for content, told in (
        ({"config": "emoji", "metods": []}, "metods"),
        ({"config": "emoji", "methods": ["clap"]}, "no method 'clap'"),
        ({"config": "emoji", "fused_experts": [["x"]]}, "'x'"),
    ):
        path.write_text(yaml.safe_dump(content))
        with pytest.raises(ConfigError, match=told):
            load_study(path)
