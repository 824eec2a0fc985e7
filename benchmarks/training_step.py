"""One training step at the sizes of YouCook2: packed rows, and padding to the longest clip of the batch as COOT does.

Both run the same weights on the same batch (64 videos, their clips, sentences, whole videos and paragraphs), forward,
backward and optimiser step, each in a process of its own so that peak memory can be told apart.

Run it with ``python benchmarks/training_step.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data.batch import Inputs, Ragged
from crossclr.models import JointModel, ModelConfig, build_model
from crossclr.models.layers import position_table

VIDEOS = 64
MAX_ROWS = 80  # FACTS of the setting: videos and clips are sampled down to 80 rows
ROWS_PER_SECOND = 0.625
STOP_ROWS = 2
DIMS = {"video": 512, "text": 1536}


# --- shapes ---------------------------------------------------------------------------------------------------------


def _annotations() -> Path:
    root = Path(os.environ.get("CROSSCLR_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return root / "youcook2" / "youcookii_annotations_trainval.json"


def _real_lengths(path: Path, generator: torch.Generator) -> dict[str, list[int]]:
    """Rows of everything in a batch of training videos of YouCook2."""
    database = json.loads(path.read_text())["database"]
    training = sorted(key for key, video in database.items() if video["subset"] == "training")
    chosen = [training[i] for i in torch.randperm(len(training), generator=generator)[:VIDEOS].tolist()]
    lengths: dict[str, list[int]] = {"vid": [], "clip": [], "par": [], "sent": [], "num": []}
    for key in chosen:
        video = database[key]
        rows = max(1, round(video["duration"] * ROWS_PER_SECOND))
        rate = rows / video["duration"]
        tokens = []
        for clip in video["annotations"]:
            start, stop = clip["segment"]
            stop_row = min(rows, math.ceil(rate * stop) + STOP_ROWS)
            lengths["clip"].append(min(MAX_ROWS, max(1, stop_row - math.floor(rate * start))))
            tokens.append(round(1.15 * len(clip["sentence"].split())) + 1)  # word pieces, and a separator
        tokens[0] += 1  # the class token
        lengths["vid"].append(min(MAX_ROWS, rows))
        lengths["par"].append(sum(tokens))
        lengths["sent"] += tokens
        lengths["num"].append(len(tokens))
    return lengths


def _synthetic_lengths(generator: torch.Generator) -> dict[str, list[int]]:
    """The same distribution from its statistics (7.75 clips per video, median 14 s; 8.8 words per sentence)."""

    def draw(count: int, median: float, spread: float, low: int, high: int) -> list[int]:
        values = (torch.randn(count, generator=generator) * spread).exp() * median
        return values.round().long().clamp(low, high).tolist()

    num = draw(VIDEOS, 7.4, 0.3, 3, 16)
    sent = draw(sum(num), 10.5, 0.4, 3, 48)
    par = [int(part.sum()) for part in torch.split(torch.tensor(sent), num)]
    clip = draw(sum(num), 11.5, 0.7, 3, MAX_ROWS)
    return {"vid": draw(VIDEOS, 200, 0.5, 30, MAX_ROWS), "clip": clip, "par": par, "sent": sent, "num": num}


def make_batch(seed: int = 0) -> dict[str, Ragged | Tensor]:
    """Random features with the lengths of a real batch, if the annotations are on this machine."""
    generator = torch.Generator().manual_seed(seed)
    path = _annotations()
    lengths = _real_lengths(path, generator) if path.exists() else _synthetic_lengths(generator)
    batch: dict[str, Ragged | Tensor] = {"num": torch.tensor(lengths["num"])}
    video, text = DIMS["video"], DIMS["text"]
    for name, dim in (("vid", video), ("clip", video), ("par", text), ("sent", text)):
        rows = torch.randn(sum(lengths[name]), dim, generator=generator)
        batch[name] = Ragged(rows, torch.tensor(lengths[name]))
    return batch


# --- the same model, padded -----------------------------------------------------------------------------------------


def _pad(sequences: Ragged) -> tuple[Tensor, Tensor]:
    padded = nn.utils.rnn.pad_sequence(sequences.split(), batch_first=True)  # (sequences, longest, dim)
    return padded, torch.arange(padded.shape[1]) >= sequences.lengths.unsqueeze(1)  # True on padding


class Padded(nn.Module):
    """A two-branch model on padded tensors with composed operations, written like COOT."""

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model
        self.positions = position_table(1000, model.config.dim)

    def drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.model.config.global_encoder.dropout, self.training)

    @staticmethod
    def norm(module: Any, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        out: Tensor = module.gain * (x - mean) / (std + module.eps) + module.bias
        return out

    def attention(self, module: Any, query: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        weights, biases = module.projection.weight.chunk(3), module.projection.bias.chunk(3)
        inputs = (query, x, x)
        q, k, v = (
            functional.linear(part, w, b).view(len(part), -1, module.heads, len(w) // module.heads).transpose(1, 2)
            for part, w, b in zip(inputs, weights, biases, strict=True)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask[:, None, None, :], -32752.0)
        mixed = self.drop(scores.softmax(-1)) @ v
        out: Tensor = module.output(mixed.transpose(1, 2).reshape(query.shape))
        return out

    def layer(self, module: Any, query: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        y = self.drop(self.norm(module.attention_norm, query + self.attention(module.attention, query, x, mask)))
        hidden = functional.gelu(self.drop(module.expand(y)))
        return self.norm(module.output_norm, y + self.drop(module.contract(hidden)))

    def pool(self, module: Any, x: Tensor, mask: Tensor) -> Tensor:
        heads = x.unsqueeze(1) @ module.expand_weight.transpose(1, 2) + module.expand_bias.unsqueeze(1)
        hidden = functional.gelu(self.drop(heads))  # (sequences, heads, longest, hidden)
        scores = hidden @ module.score_weight.transpose(1, 2) + module.score_bias.unsqueeze(1)
        scores = self.drop(scores).masked_fill(mask[:, None, :, None], -32752.0)
        weights = self.drop(scores.softmax(2)).transpose(1, 2).reshape(x.shape)
        return (weights * x).sum(1)

    def local(self, module: Any, sequences: Ragged) -> Tensor:
        x, mask = _pad(sequences)
        x = functional.gelu(module.projection(self.norm(module.input_norm, x)))
        x = x + self.positions[: x.shape[1]]
        for layer in module.layers:
            x = self.layer(layer, x, x, mask)
        return self.pool(module.pooler, x, mask)

    def global_(self, module: Any, clips: Tensor, context: Tensor, counts: Tensor) -> Tensor:
        x, mask = _pad(Ragged(clips, counts))
        x = self.norm(module.input_norm, x) + self.positions[: x.shape[1]]
        for layer in module.layers:
            x = self.layer(layer, x, x, mask)
        attended = self.layer(module.context_layer, context.unsqueeze(1), x, mask).squeeze(1)
        pooled = x.masked_fill(mask.unsqueeze(2), 0).sum(1) / counts.unsqueeze(1)
        return torch.cat([pooled, attended], dim=1)

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for name, clip, whole in (
            ("video", "clip", "vid"),
            ("text", "sent", "par"),
        ):
            branch = self.model.encoders[name]
            context = self.local(branch.local, batch[whole])
            clips = self.local(branch.local, batch[clip])
            out |= {f"clip/{name}": clips, f"context/{name}": context}
            out[f"video/{name}"] = self.global_(branch.global_, clips, context, batch["num"])
        return out


class Packed(nn.Module):
    """The implementation of this package."""

    def __init__(self, model: JointModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        rows = {"video": Inputs(batch["clip"], batch["vid"]), "text": Inputs(batch["sent"], batch["par"])}
        found = {name: self.model.encode_modality(name, inputs, batch["num"]) for name, inputs in rows.items()}
        return {f"{level}/{name}": vectors for name, levels in found.items() for level, vectors in levels.items()}


# --- measuring ------------------------------------------------------------------------------------------------------


def _contrast(a: Tensor, b: Tensor) -> Tensor:
    logits = functional.normalize(a, dim=1) @ functional.normalize(b, dim=1).T / 0.03
    target = torch.arange(len(a))
    return functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)


def _loss(out: Mapping[str, Tensor]) -> Tensor:
    return _contrast(out["clip/video"], out["clip/text"]) + 0.6 * _contrast(out["video/video"], out["video/text"])


def work(kind: str, steps: int, output: Path) -> None:
    """Measure one implementation and write the results and the embeddings."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(), DIMS, two_level=True)
    runner: nn.Module = Padded(model) if kind == "padded" else Packed(model)
    batch = make_batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with torch.no_grad():
        embeddings = runner.eval()(batch)
    runner.train()
    optimiser = torch.optim.RAdam(model.parameters(), lr=7e-4, betas=(0.56, 0.98), eps=1.5e-9)
    seconds, cpu_seconds = [], []
    for _ in range(steps + 1):  # the first one warms up
        start, cpu_start = time.perf_counter(), time.process_time()
        optimiser.zero_grad(set_to_none=True)
        _loss(runner(batch)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    results = {
        "seconds": min(seconds[1:]),
        "cpu_seconds": min(cpu_seconds[1:]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "before_mb": before,
        "clips": len(embeddings["clip/video"]),
    }
    torch.save({"results": results, "embeddings": embeddings}, output)


def _measure(kind: str, steps: int, folder: Path) -> dict[str, Any]:
    output = folder / f"{kind}.pt"
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", kind, "--steps", str(steps)]
    subprocess.run([*command, "--output", str(output)], check=True)
    result: dict[str, Any] = torch.load(output, weights_only=True)
    return result


def run(steps_padded: int = 2, steps_ours: int = 5) -> dict[str, float]:
    """Measure both implementations, one after the other.

    Returns:
        Seconds, CPU seconds and peak megabytes of each way, ``ratio`` (how many times faster ours is), ``cpu_ratio``
        (the same by CPU seconds, which a busy machine blurs less), ``memory_share`` (our peak over the padded peak)
        and ``max_difference`` of the embeddings without dropout.

    Raises:
        RuntimeError: the two do not compute the same thing.
    """
    with tempfile.TemporaryDirectory() as folder:
        padded = _measure("padded", steps_padded, Path(folder))
        ours = _measure("ours", steps_ours, Path(folder))
    difference = max(
        float((padded["embeddings"][name] - ours["embeddings"][name]).abs().max()) for name in ours["embeddings"]
    )
    if not difference < 1e-4:
        raise RuntimeError(f"the padded and the packed model differ by {difference}")
    a, b = padded["results"], ours["results"]
    return {
        "seconds_padded": a["seconds"],
        "seconds_ours": b["seconds"],
        "ratio": a["seconds"] / b["seconds"],
        "cpu_seconds_padded": a["cpu_seconds"],
        "cpu_seconds_ours": b["cpu_seconds"],
        "cpu_ratio": a["cpu_seconds"] / b["cpu_seconds"],
        "peak_mb_padded": a["peak_mb"],
        "peak_mb_ours": b["peak_mb"],
        "memory_share": b["peak_mb"] / a["peak_mb"],
        "max_difference": difference,
        "videos": VIDEOS,
        "clips": b["clips"],
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=["padded", "ours"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.steps, options.output)
        return
    results = run()
    print(f"{VIDEOS} videos, {results['clips']:.0f} clips, {results['threads']:.0f} threads")
    print(f"{'':10}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}")
    for name in ("padded", "ours"):
        seconds, cpu = results[f"seconds_{name}"], results[f"cpu_seconds_{name}"]
        print(f"{name:10}{seconds:10.2f}{cpu:10.2f}{results[f'peak_mb_{name}']:10.0f}")
    print(f"{results['ratio']:.2f} times faster, {results['cpu_ratio']:.2f} times by CPU seconds")
    print(f"{results['memory_share']:.0%} of the memory")
    print(f"largest difference of the embeddings {results['max_difference']:.1e}")


if __name__ == "__main__":
    main()
