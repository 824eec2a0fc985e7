"""``check_space``: what every search space must do, whatever it consists of."""

import pytest
import torch

from crossclr.data import Inputs, Ragged
from crossclr.models import ModelConfig, SearchSpace, build_model
from crossclr.models.closed_form import ClosedForm
from crossclr.models.space import HubCorrection, TrainedEncoder

DIMS = {"video": 7, "text": 5}
ENCODERS = {"mlp": {"kind": "mlp", "blocks": 1}, "transformer": {"kind": "transformer", "heads": 2}}


def rows(count=40):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 4, generator=generator)
    return {name: hidden @ torch.randn(4, dim, generator=generator) for name, dim in DIMS.items()}


def make_space(closed: bool, encoders: list[str], share: float = 0.4, hubs: bool = False) -> SearchSpace:
    torch.manual_seed(1)
    models = [build_model(ModelConfig(dim=8, encoder=ENCODERS[name]), DIMS, two_level=False) for name in encoders]
    space = SearchSpace(DIMS, ClosedForm().fit(rows()) if closed else None, [*map(TrainedEncoder, models)], share)
    if hubs:
        space.hubs = HubCorrection({name: space.plain(name, values) for name, values in rows().items()}, 0.5)
    return space


SPACES = {
    "closed form": lambda: make_space(True, []),
    "one encoder": lambda: make_space(False, ["mlp"]),
    "two encoders": lambda: make_space(False, ["mlp", "transformer"]),
    "all parts": lambda: make_space(True, ["mlp", "transformer"], hubs=True),
    "closed form and hubs": lambda: make_space(True, [], hubs=True),
}


@pytest.fixture(params=SPACES)
def space(request) -> SearchSpace:
    return SPACES[request.param]()


def check_space(space: SearchSpace) -> None:
    """Check the contract that evaluation, search and export build on."""
    assert space.modalities == tuple(space.dims)
    assert not space.training
    for name, values in rows().items():
        queries, items = space.encode_queries(name, values), space.encode_items(name, values)
        for vectors in (queries, items):
            assert vectors.shape == (len(values), space.embedding_dim)
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(values)))
        # a vector depends neither on the other samples of its batch nor on how its rows are given
        torch.testing.assert_close(space.encode_queries(name, values[3:5]), queries[3:5])
        torch.testing.assert_close(space.encode_items(name, [row[None] for row in values[:4]]), items[:4])
        sequences = [values[:3], values[3:4]]
        alone = torch.cat([space.encode_queries(name, [one]) for one in sequences])
        torch.testing.assert_close(space.encode_queries(name, sequences), alone)
        with pytest.raises(ValueError, match=f"rows of '{name}' have"):
            space.encode_queries(name, values.repeat(1, 2))
        with torch.no_grad():
            found = space.encode_modality(name, Inputs(Ragged.from_list(list(values.split(1)))))
        unit = {key: torch.nn.functional.normalize(vectors, dim=1) for key, vectors in found.items()}
        torch.testing.assert_close(unit["clip"], queries)
        torch.testing.assert_close(unit.get("items", unit["clip"]), items)
    with pytest.raises(ValueError, match="no modality 'sound'"):
        space.encode_items("sound", torch.ones(1, 7))


def test_check_space(space):
    check_space(space)


def test_a_stored_space_gives_the_same_vectors(space):
    again = SearchSpace.restore(space.tensors(), space.description(), space.trained)
    check_space(again)
    for name, values in rows().items():
        torch.testing.assert_close(again.encode_items(name, values), space.encode_items(name, values))


def test_the_check_can_fail(monkeypatch):
    space = make_space(True, [])
    monkeypatch.setattr(space, "encode_items", lambda name, samples: 2 * SearchSpace.encode_items(space, name, samples))
    with pytest.raises(AssertionError):
        check_space(space)
