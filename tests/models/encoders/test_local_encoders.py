"""Local encoders against the naive padded model and against loops over sequences."""

import pytest
import torch
from torch.nn import functional

from crossclr.data import Ragged
from crossclr.models.encoders import MLPEncoder, TransformerEncoder, build_local_encoder
from crossclr.models.model_config import MLPEncoderConfig, TransformerEncoderConfig
from tests.models import naive


def ragged(lengths, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Ragged(torch.randn(sum(lengths), dim, generator=generator, dtype=torch.float64), torch.tensor(lengths))


def encoder_of(config, input_dim=5, dim=8):
    torch.manual_seed(0)
    encoder = build_local_encoder(config, input_dim, dim).double().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return encoder


def test_the_config_chooses_the_encoder():
    assert isinstance(build_local_encoder(TransformerEncoderConfig(heads=2), 3, 8), TransformerEncoder)
    assert isinstance(build_local_encoder(MLPEncoderConfig(), 3, 8), MLPEncoder)


@pytest.mark.parametrize("pooler", ["attention", "max", "mean"])
@pytest.mark.parametrize("layers", [1, 2])
def test_transformer_equals_the_naive_padded_one(pooler, layers):
    encoder = encoder_of(TransformerEncoderConfig(heads=2, layers=layers, pooler=pooler))
    sequences = ragged([4, 1, 7, 4, 2], 5)
    expected = naive.local(sequences.values, sequences.lengths, encoder.state_dict(), 2, pooler, extra=3)
    torch.testing.assert_close(encoder(sequences), expected)


@pytest.mark.parametrize("config", [TransformerEncoderConfig(heads=2), MLPEncoderConfig(sequence_pooling="mean_max")])
def test_several_ragged_are_encoded_as_one_in_their_order(config):
    encoder = encoder_of(config)
    first, second = ragged([3, 1], 5, seed=1), ragged([5, 2, 2], 5, seed=2)
    torch.testing.assert_close(encoder(first, second), torch.cat([encoder(first), encoder(second)]))


@pytest.mark.parametrize("pooling", ["mean", "max", "mean_max"])
def test_mlp_against_a_loop_over_sequences(pooling):
    encoder = encoder_of(MLPEncoderConfig(sequence_pooling=pooling, blocks=1, input_norm="layer"))
    sequences = ragged([4, 1, 3], 5)
    state = encoder.state_dict()
    for found, rows in zip(encoder(sequences), sequences.split(), strict=True):
        parts = {"mean": [rows.mean(0)], "max": [rows.max(0).values], "mean_max": [rows.mean(0), rows.max(0).values]}
        x = torch.cat(parts[pooling])
        x = functional.layer_norm(x, x.shape, state["input_norm.weight"], state["input_norm.bias"])
        x = state["projection.weight"] @ x + state["projection.bias"]
        y = functional.layer_norm(x, x.shape, state["blocks.0.norm.weight"], state["blocks.0.norm.bias"])
        hidden = functional.gelu(state["blocks.0.expand.weight"] @ y + state["blocks.0.expand.bias"])
        expected = x + state["blocks.0.contract.weight"] @ hidden + state["blocks.0.contract.bias"]
        torch.testing.assert_close(found, expected)


def test_mean_and_maximum_that_are_already_pooled_give_the_same_vectors():
    encoder = encoder_of(MLPEncoderConfig(sequence_pooling="mean_max"))
    sequences = ragged([4, 1, 3], 5)
    pooled = [torch.cat([rows.mean(0), rows.max(0).values])[None] for rows in sequences.split()]
    torch.testing.assert_close(encoder(Ragged.from_list(pooled)), encoder(sequences))


def test_row_dropout_is_for_training_only():
    encoder = encoder_of(MLPEncoderConfig(row_dropout=0.5, dropout=0.0))
    sequences = ragged([40, 40], 5)
    torch.testing.assert_close(encoder(sequences), encoder(sequences), rtol=0, atol=0)
    encoder.train()
    torch.manual_seed(1)
    assert not torch.allclose(encoder(sequences), encoder(sequences))


@pytest.mark.parametrize("config", [TransformerEncoderConfig(heads=2), MLPEncoderConfig()])
def test_errors_name_the_channels_and_empty_batches(config):
    encoder = encoder_of(config)
    with pytest.raises(ValueError, match="built for rows of 5 channels, but these rows have 4"):
        encoder(ragged([2], 4))
    with pytest.raises(ValueError, match="no sequences to encode"):
        encoder(Ragged(torch.zeros(0, 5).double(), torch.zeros(0, dtype=torch.int64)))
