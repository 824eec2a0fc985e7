"""Training with CLIP's loss that starts at linear CCA: what it does to recall on its own clips and on new ones.

    python -m benchmarks.start_at_cca SIMULATED

SIMULATED is a folder for the study youcook2-simulated. Each modality has a linear map after its CCA projection. It
begins as the identity, so epoch 0 is CCA. A row shows text → video R@1 and R@10 on 3,000 training clips, the held-out
training clips and the test clips.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from crossclr.evaluation.baseline import Pairs, fit_baseline, pooled_rows
from crossclr.evaluation.metrics import recall
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.losses import build_loss
from crossclr.studies.study_config import base_config, load_study
from crossclr.studies.trainings import open_trainer

BATCH, SHOWN = 496, 3_000  # the clips of 64 videos; training clips that are measured


def projected(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Video and text vectors of each split under the CCA of the training clips."""
    config = base_config(load_study("youcook2-simulated"), [f"data.root={folder}"])
    splits, data = config.splits, open_trainer(config).raw
    fitted = fit_baseline(data, train=splits.train, validation=splits.validate_)["clip"]
    found = {}
    for name, split in (("training", splits.train), ("held out", splits.validate_), ("test", splits.test)):
        pooled = pooled_rows(data.where(split=split))
        rows = Pairs.of(pooled, pooled.video_keys).data.rows
        video, text = (nn.functional.normalize(fitted.encode(one, rows[one]).float(), dim=1) for one in rows)
        found[name] = video, text
    return found


def show(epoch: int, maps: nn.ModuleList, data: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Print one row."""
    cells = []
    for name, vectors in data.items():
        rows = [own[:SHOWN] if name == "training" else own for own in vectors]
        with torch.no_grad():
            video, text = (one(own) for one, own in zip(maps, rows, strict=True))
        ranks = retrieval_ranks(text, video, progress=False)
        cells.append(f"{recall(ranks, 1):6.1f} / {recall(ranks, 10):4.1f}")
    print(f"{epoch:5d}  " + "  ".join(cells), flush=True)


def main() -> None:
    """Train and print a row after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--temperature", type=float, default=0.056)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    data = projected(args.folder)
    video, text = data["training"]
    torch.manual_seed(0)
    loss = build_loss("clip", temperature=args.temperature)
    maps = nn.ModuleList(nn.Linear(video.shape[1], video.shape[1], bias=False) for _ in range(2))
    for one in maps:
        nn.init.eye_(one.weight)  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(maps.parameters(), lr=args.rate)
    print("epoch  " + "  ".join(f"{name:>13s}" for name in data))
    show(0, maps, data)
    for epoch in range(1, args.epochs + 1):
        for batch in torch.split(torch.randperm(len(video)), BATCH):
            optimiser.zero_grad()
            loss(maps[0](video[batch]), maps[1](text[batch])).backward()
            optimiser.step()
        show(epoch, maps, data)


if __name__ == "__main__":
    main()
