"""The captioner against a loop in float64 that goes video by video and sentence by sentence, as MART is written."""

import math

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.captioner import Captioner
from crossclr.captions.vocabulary import BOS, CLS, EOS, PAD, SEP, VID

FEATURES, WORDS = 5, 23
CONFIG = CaptionModelConfig(dim=12, heads=3, word_dim=6, layers=2, memory_cells=2, max_rows=3, max_words=6)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Captioner(CONFIG, FEATURES, WORDS).double().eval()
    with torch.no_grad():
        for weight in model.parameters():  # larger than at the start, and no bias or gain left at its neutral value
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def make_videos(counts, seed=0):
    """For each video a list of (rows, sentence)."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    return [
        [
            (
                torch.randn(number(1, 4), FEATURES, generator=generator, dtype=torch.float64),
                [BOS, *(number(7, WORDS) for _ in range(number(1, 6))), EOS],
            )
            for _ in range(count)
        ]
        for count in counts
    ]


def as_batch(videos):
    """Time by time; videos must have falling counts."""
    active = [sum(len(video) > time for video in videos) for time in range(len(videos[0]))]
    steps = [video[time] for time in range(len(videos[0])) for video in videos if len(video) > time]
    features = torch.nn.utils.rnn.pad_sequence([rows for rows, _ in steps], batch_first=True, padding_value=9.0)
    words = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for _, text in steps], batch_first=True)
    rows = torch.tensor([len(rows) for rows, _ in steps])
    return features, rows, words, torch.tensor([len(text) for _, text in steps]), active


# the loop


def norm(x, module):
    return layer_norm(x, x.shape[-1:], module.weight, module.bias, 1e-12)


def apply_inputs(x, module):
    first, _, linear, _, last = module
    return norm(torch.relu(norm(x, first) @ linear.weight.T + linear.bias), last)


def linear(x, module):
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def attend(module, query, memory, mask):
    """One head after the other, one query after the other; mask[i][j] tells whether i sees j."""
    dim, size = module.dim, module.dim // module.heads
    q, k, v = (
        x @ module.projection.weight[i * dim : (i + 1) * dim].T + module.projection.bias[i * dim : (i + 1) * dim]
        for i, x in ((0, query), (1, memory), (2, memory))
    )
    out = torch.zeros_like(q)
    for head in range(module.heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(q)):
            scores = [
                math.exp(float(q[i, part] @ k[j, part]) / math.sqrt(size)) if mask[i][j] else 0.0 for j in range(len(k))
            ]
            out[i, part] = sum(s / sum(scores) * v[j, part] for j, s in enumerate(scores))
    return out


def naive_sentence(model, rows, text, memories, padding=0):
    """Hidden rows of the text and the memories after it, with everything padded to the full length."""
    embedding, positions = model.embedding, CONFIG.max_rows + 2
    ids = [CLS, *[VID] * len(rows), SEP]
    ids += [PAD] * (positions - len(ids)) + text + [PAD] * (CONFIG.max_words + 2 - len(text))
    values = torch.zeros(len(ids), FEATURES, dtype=torch.float64)
    values[1 : 1 + len(rows)] = rows
    parts = torch.tensor([0] * positions + [1] * (len(ids) - positions))
    place = torch.arange(len(ids), dtype=torch.float64)
    table = torch.zeros(len(ids), CONFIG.dim, dtype=torch.float64)
    for channel in range(CONFIG.dim):
        wave = torch.sin if channel % 2 == 0 else torch.cos
        table[:, channel] = wave(place / 10000 ** (2 * (channel // 2) / CONFIG.dim))
    x = apply_inputs(embedding.words.weight[torch.tensor(ids)], embedding.word_input)
    x = x + apply_inputs(values, embedding.feature_input) + embedding.parts.weight[parts] + table
    x = norm(x, embedding.norm)
    valid = [i < len(rows) + 2 or positions <= i < positions + len(text) for i in range(len(ids))]
    sees = [[valid[j] and (j < positions or positions <= j <= i) for j in range(len(ids))] for i in range(len(ids))]
    after = []
    for layer, memory in zip(model.layers, memories or [None] * len(model.layers), strict=True):
        a = norm(x + linear(attend(layer.attention, x, x, sees), layer.attention_output), layer.attention_norm)
        h = gelu(linear(a, layer.hidden))
        if memory is None:
            start = layer.memory_start
            mean = h[: len(rows) + 2].mean(0)
            memory = torch.stack([norm(linear(mean + bias, start.projection), start.norm) for bias in start.cell_bias])
        update = layer.memory_update
        seen = attend(update.attention, memory, h, [valid] * len(memory))
        both = linear(memory, update.from_memory) + linear(seen, update.from_sentence)
        candidate, gate = torch.tanh(both[:, : CONFIG.dim]), torch.sigmoid(both[:, CONFIG.dim :])
        after.append((1 - gate) * candidate + gate * memory)
        mixed = attend(layer.memory_attention, h, torch.cat([memory, h]), [[True] * len(memory) + row for row in sees])
        x = norm(a + linear(linear(mixed, layer.memory_projection), layer.output), layer.output_norm)
    return x[positions : positions + len(text)], after


def naive(model, videos):
    found = []
    for video in videos:
        memories, outputs = None, []
        for rows, text in video:
            out, memories = naive_sentence(model, rows, text, memories)
            outputs.append(out)
        found.append(outputs)
    return found


def by_video(out, lengths, active):
    """Back from not ordered by time to video by video."""
    found = [[] for _ in range(active[0])]
    row = 0
    for count in active:
        for video in range(count):
            found[video].append(out[row, : lengths[row]])
            row += 1
    return found


@torch.no_grad()
def test_all_sentences_at_once_equal_the_loop(model):
    videos = make_videos([4, 3, 1])
    batch = as_batch(videos)
    found = by_video(model(*batch), batch[3].tolist(), batch[4])
    for ours, theirs in zip(found, naive(model, videos), strict=True):
        for out, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(out, expected, rtol=0, atol=1e-7)


@torch.no_grad()
def test_memory_after_a_sentence_equals_the_loop(model):
    videos = make_videos([1, 1], seed=3)
    batch = as_batch(videos)
    _, memory = model.after(*batch[:4])
    expected = [naive_sentence(model, *video[0], None)[1] for video in videos]
    for layer, cells in enumerate(memory):
        torch.testing.assert_close(cells, torch.stack([video[layer] for video in expected]), rtol=0, atol=1e-7)


@torch.no_grad()
def test_a_sentence_depends_on_the_ones_before_it_and_not_on_later_ones(model):
    video = make_videos([3])[0]
    other = [(video[0][0], [BOS, 8, 9, EOS]), *video[1:]]

    def run(sentences):
        batch = as_batch([sentences])
        return by_video(model(*batch), batch[3].tolist(), batch[4])[0]

    before, after = run(video), run(other)
    assert not torch.allclose(before[1], after[1], atol=1e-6)
    assert not torch.allclose(before[2], after[2], atol=1e-6)
    longer = run([*video, make_videos([1], seed=8)[0][0]])
    for first, second in zip(before, longer, strict=False):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


@torch.no_grad()
def test_neither_padding_nor_other_videos_change_a_video(model):
    videos = make_videos([3, 2, 2, 1], seed=1)
    batch = as_batch(videos)
    together = by_video(model(*batch), batch[3].tolist(), batch[4])
    for video, found in zip(videos, together, strict=True):
        alone = as_batch([video])
        for out, expected in zip(found, by_video(model(*alone), alone[3].tolist(), alone[4])[0], strict=True):
            torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    features, rows, words, lengths, active = batch
    wider = torch.cat([words, torch.full((len(words), 1), PAD)], dim=1)
    out = model(features, rows, wider, lengths, active)
    inside = torch.arange(words.shape[1]) < lengths.unsqueeze(1)
    torch.testing.assert_close(out[:, :-1][inside], model(*batch)[inside], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_single_sentence_needs_no_update_of_the_memory(model):
    plain = Captioner(CONFIG, FEATURES, WORDS, recurrent=False).double().eval()
    missing = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing.missing_keys
    assert missing.unexpected_keys
    assert all("memory_update" in name for name in missing.unexpected_keys)
    batch = as_batch(make_videos([1, 1, 1], seed=2))
    assert torch.equal(model(*batch), plain(*batch))
    several = as_batch(make_videos([2, 1], seed=2))
    assert not torch.allclose(model(*several), plain(*several))


def test_gradients_reach_everything_and_the_first_sentence_through_the_memory(model):
    features, rows, words, lengths, active = as_batch(make_videos([3, 2]))
    features.requires_grad_()
    out = model(features, rows, words, lengths, active)
    third = out[sum(active[:2]) :]
    (gradient,) = torch.autograd.grad(third.sum() + third.square().sum(), features, retain_graph=True)
    assert float(gradient[0].abs().sum()) > 0  # the first sentence of the first video
    assert float(gradient[1].abs().sum()) == 0  # another video
    model.logits(out).square().sum().backward()
    assert all(weight.grad is not None and float(weight.grad.abs().sum()) > 0 for weight in model.parameters())


@pytest.mark.parametrize(("features", "expected"), [(384, 23_454_394), (1152, 24_045_754), (3072, 25_524_154)])
def test_the_papers_sizes_have_its_number_of_weights(features, expected):
    with torch.device("meta"):
        model = Captioner(CaptionModelConfig(), features, 992)
    assert sum(weight.numel() for weight in model.parameters()) == expected


def test_sentences_out_of_order_are_an_error(model):
    features, rows, words, lengths, _ = as_batch(make_videos([2, 1]))
    with pytest.raises(ValueError, match="not ordered by time"):
        model(features, rows, words, lengths, [1, 2])


def test_heads_must_divide():
    with pytest.raises(ValueError, match="multiple of heads"):
        CaptionModelConfig(dim=10, heads=3)
