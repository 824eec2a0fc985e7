"""Zero-shot spaces: a loop over classes, joint models' own cosines, their share beside the closed form, and storage."""

import math

import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional

from crossclr.models.choice import SpaceData, choose_space, prior_share
from crossclr.models.closed_form import ClosedForm
from crossclr.models.space import SearchSpace
from crossclr.models.zero_shot import SharedTower, ZeroShot
from crossclr.notices import CrossCLRWarning
from crossclr.search.onnx_export import PaddedSpace

CLASSES, CHANNELS, WIDTH = 40, 24, 10


def class_space(seed=0, temperature=0.5):
    """Images whose classifier has learnt what captions say, and captions."""
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(CLASSES, CHANNELS, generator=generator), torch.randn(CLASSES, generator=generator)
    vectors = torch.randn(CLASSES, WIDTH, generator=generator)
    return ZeroShot.from_class_names({"image": (weight, bias)}, ["text"], vectors, temperature, "names of classes")


def photos(space, count, noise=0.3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(count, CHANNELS, generator=generator)
    text = space.branch("image")(image) + space.branch("text").centre
    return {"image": image, "text": text + noise * torch.randn(count, WIDTH, generator=generator)}


def space_data(rows, present=None, **labels):
    everywhere = torch.ones(len(rows["text"]), dtype=torch.bool)
    return SpaceData(rows, {name: (present or {}).get(name, everywhere) for name in rows}, **labels)


def test_class_names_against_a_loop():
    space = class_space()
    rows = torch.randn(3, CHANNELS, generator=torch.Generator().manual_seed(2))
    tower = space.branch("image")
    for row, found in zip(rows, space.branch("image")(rows), strict=True):
        logits = [float(row @ weight + bias) / 0.5 for weight, bias in zip(tower.weight, tower.bias, strict=True)]
        total = sum(math.exp(logit) for logit in logits)
        mean = sum(math.exp(logit) / total * vector for logit, vector in zip(logits, tower.class_vectors, strict=True))
        expected = mean - tower.class_vectors.mean(dim=0)
        torch.testing.assert_close(found, expected / expected.norm(), atol=1e-5, rtol=0)


def test_a_joint_model_keeps_its_cosines_and_stands_alone_without_pairs():
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(30, 8, generator=generator) for name in ("image", "text")}
    zero_shot = ZeroShot.from_joint_model(["image", "text"], 8, "a joint model")
    present = {"image": torch.arange(30) < 15, "text": torch.arange(30) >= 15}
    space = choose_space(space_data(rows, present), zero_shot=zero_shot)
    expected = functional.cosine_similarity(rows["text"].unsqueeze(1), rows["image"].unsqueeze(0), dim=2)
    torch.testing.assert_close(
        space.encode_queries("text", rows["text"]) @ space.encode_items("image", rows["image"]).T, expected
    )
    assert [(part.name, part.share) for part in space.parts] == [("a joint model", 1.0)]
    assert space.embedding_dim == 8
    again = SearchSpace.restore(load(save(space.tensors())), space.description())
    torch.testing.assert_close(again.encode_items("image", rows["image"]), space.encode_items("image", rows["image"]))


def test_similarities_are_weighted_means_and_are_exported_so():
    zero_shot = class_space()
    rows = photos(zero_shot, 80)
    closed = ClosedForm().fit(rows)
    space = SearchSpace({"image": CHANNELS, "text": WIDTH}, closed, zero_shot=zero_shot, zero_shot_share=0.3)
    cosines = [
        part("text")(rows["text"]) @ part("image")(rows["image"]).T for part in (closed.branch, zero_shot.branch)
    ]
    found = space.encode_queries("text", rows["text"]) @ space.encode_items("image", rows["image"]).T
    torch.testing.assert_close(found, 0.7 * cosines[0] + 0.3 * cosines[1], atol=1e-5, rtol=0)
    padded = PaddedSpace(space, "image", as_items=True)(rows["image"].unsqueeze(1), torch.ones(80, dtype=torch.int64))
    torch.testing.assert_close(padded, space.encode_items("image", rows["image"]), atol=1e-6, rtol=0)


def test_a_modality_that_one_part_lacks_has_unit_vectors_and_the_ranks_of_the_other():
    zero_shot = class_space()
    rows = photos(zero_shot, 80)
    rows["sound"] = torch.tanh(rows["text"][:, :6])
    space = SearchSpace(
        {name: values.shape[1] for name, values in rows.items()},
        closed := ClosedForm().fit({name: rows[name] for name in ("text", "sound")}),
        zero_shot=zero_shot,
        zero_shot_share=0.5,
    )
    for name, part in {"sound": closed, "image": zero_shot}.items():
        found = space.encode_queries("text", rows["text"]) @ space.encode_items(name, rows[name]).T
        expected = 0.5**0.5 * part.branch("text")(rows["text"]) @ part.branch(name)(rows[name]).T
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(space.encode_items(name, rows[name]).norm(dim=1), torch.ones(80))


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [10, 60])
def test_a_share_is_chosen_where_it_helps_and_is_zero_where_it_does_not(pairs, recwarn):
    zero_shot = class_space()
    helpful = choose_space(space_data(photos(zero_shot, pairs)), zero_shot=zero_shot)
    assert helpful.zero_shot_share == pytest.approx(prior_share(pairs), abs=0.35)
    assert sum(part.share for part in helpful.parts if part.name != "hub correction") == pytest.approx(1)
    assert any(issubclass(warning.category, CrossCLRWarning) for warning in recwarn) == (pairs == 10)
    unrelated = ZeroShot(
        {**dict.fromkeys(["image"], class_space(7).branch("image")), "text": class_space().branch("text")}
    )
    useless = choose_space(space_data(photos(zero_shot, 60, noise=0.01)), zero_shot=unrelated)
    assert useless.zero_shot_share == 0
    assert useless.zero_shot is None
    assert useless.parts[1].gain < useless.parts[1].error


@pytest.mark.slow
def test_few_captions_among_many_files_and_a_modality_without_any():
    zero_shot = class_space()
    rows = photos(zero_shot, 300)
    rows["sketch"] = rows["image"] + 0.1
    zero_shot = ZeroShot(
        {name: zero_shot.branch("text" if name == "text" else "image") for name in rows}, "names of classes"
    )
    present = {"text": torch.arange(300) % 10 == 0, "sketch": torch.arange(300) < 0, "image": torch.arange(300) >= 0}
    present["sketch"][5], present["image"][5] = True, False
    rows["text"][~present["text"]] = torch.nan
    space = choose_space(space_data(rows, present), zero_shot=zero_shot)
    assert space.closed_form.modalities == ("image", "text")
    assert space.facts.estimate.samples == 30
    assert bool(space.encode_items("sketch", rows["sketch"]).isfinite().all())
    assert 0 < space.zero_shot_share < 1


@pytest.mark.filterwarnings("ignore:there are 3 samples")
def test_equal_captions_are_not_correlated_and_the_zero_shot_space_stands_alone():
    zero_shot = class_space()
    rows = photos(zero_shot, 60)
    rows["text"][:3] = rows["text"][0]
    with pytest.warns(CrossCLRWarning, match="the pairs are not used, because all training rows of modality 'text'"):
        space = choose_space(space_data(rows, {"text": torch.arange(60) < 3}), zero_shot=zero_shot)
    assert space.closed_form is None
    expected = zero_shot.branch("image")(rows["image"])
    torch.testing.assert_close(space.encode_items("image", rows["image"]), expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SharedTower(torch.zeros(3), torch.ones(4, 2), None, torch.ones(5, 3)), "one row for each class"),
        (lambda: SharedTower(torch.zeros(3), temperature=0.0), "temperature must be positive"),
        (lambda: ZeroShot({"a": SharedTower(torch.zeros(3)), "b": SharedTower(torch.zeros(4))}), "need one width"),
        (lambda: class_space().branch("sound"), "no modality 'sound'; it has image, text"),
        (lambda: class_space().check_channels({"image": 3}), "'image' have 3 channels, but names of classes takes 24"),
        (lambda: class_space().check_channels({"sound": 3}), "has image, text, but the data has sound"),
    ],
)
def test_what_does_not_fit_is_an_error(build, message):
    with pytest.raises(ValueError, match=message):
        build()
