from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from crossclr.models.model_config import GlobalEncoderConfig, MLPEncoderConfig, ModelConfig, TransformerEncoderConfig


@pytest.mark.parametrize("kind", [ModelConfig, TransformerEncoderConfig, MLPEncoderConfig, GlobalEncoderConfig])
def test_every_field_is_described(kind: type[BaseModel]) -> None:
    for name, field in kind.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dimm": 4}, "dimm"),
        ({"encoder": {"poller": "max"}}, "poller"),
        ({"encoder": {"kind": "cnn"}}, "cnn"),
        ({"encoder": {"kind": "mlp", "heads": 4}}, "heads"),
        ({"dim": 12}, r"dim 12 is not divisible by encoder\.heads 8"),
        ({"dim": 9, "encoder": {"heads": 3, "pooler_heads": 2}}, r"encoder\.pooler_heads 2"),
        ({"dim": 8, "global_encoder": {"heads": 3}}, r"global_encoder\.heads 3"),
        ({"global_encoder": {"dropout": 1.0}}, "dropout"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(given)


def test_json_round_trip() -> None:
    config = ModelConfig.model_validate(
        {"encoder": {"kind": "mlp", "blocks": 3}, "encoders": {"text": {"kind": "transformer", "pooler": "max"}}}
    )
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    assert isinstance(config.encoder_of("video"), MLPEncoderConfig)
    assert isinstance(config.encoder_of("text"), TransformerEncoderConfig)


def test_a_small_model_of_one_level_is_read_back_from_its_dump():
    encoder = {"kind": "mlp"}
    config = ModelConfig(dim=6, encoder=encoder)
    assert ModelConfig.model_validate(config.model_dump()) == config
    with pytest.raises(ValidationError, match=r"dim 6 is not divisible by global_encoder\.heads 4"):
        ModelConfig(dim=6, encoder=encoder, global_encoder={"heads": 4})
