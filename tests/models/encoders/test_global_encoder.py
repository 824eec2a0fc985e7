"""The global encoder against the naive padded model, in both ways of pooling."""

import pytest
import torch

from crossclr.models.encoders import GlobalEncoder
from crossclr.models.model_config import GlobalEncoderConfig
from tests.models import naive

COUNTS = torch.tensor([3, 1, 4, 1])


def encoder_of(**options):
    torch.manual_seed(0)
    encoder = GlobalEncoder(GlobalEncoderConfig(heads=2, **options), dim=8).double().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return encoder


def inputs(counts=COUNTS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    clips = torch.randn(int(counts.sum()), 8, generator=generator, dtype=torch.float64)
    return clips, torch.randn(len(counts), 8, generator=generator, dtype=torch.float64), counts


def expected(encoder, clips, context, counts, extra, real_only):
    """Padded clips with explicit masks; padding is zero before the norm, as in COOT."""
    state = encoder.state_dict()
    longest = int(counts.max()) + extra
    x = torch.zeros(len(counts), longest, 8, dtype=torch.float64)
    for video, rows in enumerate(torch.split(clips, counts.tolist())):
        x[video, : len(rows)] = rows
    real = torch.arange(longest)[None] < counts[:, None]
    x = naive.norm(x, naive.under(state, "input_norm")) + naive.positions(longest, 8)
    x = naive.layers(x, real, state, 2)
    attended = naive.layer(context[:, None], x, real, naive.under(state, "context_layer"), 2)[:, 0]
    summed = (x * real[..., None]).sum(1) if real_only else x.sum(1)
    return torch.cat([summed / counts[:, None], attended], 1)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_mean_equals_the_naive_padded_one(layers):
    encoder = encoder_of(layers=layers)
    torch.testing.assert_close(encoder(*inputs()), expected(encoder, *inputs(), extra=3, real_only=True))


def test_coots_sum_includes_padded_positions():
    encoder = encoder_of(pool="coot_sum")
    found = encoder(*inputs())
    torch.testing.assert_close(found, expected(encoder, *inputs(), extra=0, real_only=False))
    assert not torch.allclose(found, expected(encoder, *inputs(), extra=0, real_only=True))


def test_only_coots_sum_depends_on_the_other_videos():
    clips, context, counts = inputs()
    alone = (clips[3:4], context[1:2], counts[1:2])  # the second video, which has one clip
    mean, coot_sum = encoder_of(), encoder_of(pool="coot_sum")
    torch.testing.assert_close(mean(*alone)[0], mean(clips, context, counts)[1])
    assert not torch.allclose(coot_sum(*alone)[0], coot_sum(clips, context, counts)[1])


def test_the_order_of_clips_and_the_context_matter():
    encoder = encoder_of()
    clips, context, counts = inputs()
    found = encoder(clips, context, counts)
    swapped = torch.cat([clips[:3].flip(0), clips[3:]])
    assert not torch.allclose(encoder(swapped, context, counts)[0], found[0])
    torch.testing.assert_close(encoder(swapped, context, counts)[1:], found[1:])
    assert not torch.allclose(encoder(clips, context + 1, counts)[:, 8:], found[:, 8:])


def test_counts_must_match():
    clips, context, _ = inputs()
    with pytest.raises(ValueError, match="2 videos with 9 clips, but there are 4 contexts and 9 clips"):
        encoder_of()(clips, context, torch.tensor([4, 5]))
