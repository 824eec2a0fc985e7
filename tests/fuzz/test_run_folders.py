"""Damaged run folders and indexes: a changed file that a manifest lists is never used."""

import json
import random
import shutil

import pytest

from crossclr.search import Searcher
from crossclr.storage.manifest import NAME, SMALL
from crossclr.training import Run
from crossclr.training.run import verify
from tests.fuzz.verdicts import broken_bytes, judge, share

BATCHES, CASES = share(400, 10)
GROWING = ("metrics.jsonl", "README.md")  # no manifest lists them


def use(path):
    """Open everything that commands open."""
    run = Run.open(path)
    run.load_model()
    run.load_state()
    _ = run.results, run.metrics(), run.history()
    run.open_data()
    searcher = Searcher.open(run, text=False)
    try:
        name = searcher.items.columns("name")[0][0]
        found = searcher.search(like=name, top=5)
        return [(hit.item.name, round(hit.score, 4)) for hit in found]
    finally:
        searcher.close()


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= SMALL)


@pytest.mark.parametrize("seed", BATCHES)
def test_damaged_files(indexed, tmp_path, seed):
    rng = random.Random(seed)
    right = use(indexed)
    for number in range(CASES):
        folder = tmp_path / str(number)
        shutil.copytree(indexed, folder)
        path = rng.choice(files_of(folder))
        name, before = path.relative_to(folder).as_posix(), path.read_bytes()
        case, content = broken_bytes(before, rng) if rng.random() < 0.8 else ("removed", None)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        unlisted = path.name in GROWING or path.name == "CURRENT" or content == before
        must = None if unlisted or path.name == NAME else True
        verdict = judge(lambda folder=folder: use(folder), f"seed {seed}, {name}: {case}", must)
        if not verdict.refused:
            assert verdict.result == right, f"{name}: {case}: another answer, and no error"
        shutil.rmtree(folder)


VALUES = [None, [], {}, 0, -1, "x", [[1]], {"a": None}, 1e300, True]


@pytest.mark.parametrize("seed", BATCHES)
def test_edited_facts_with_a_new_manifest(indexed, tmp_path, seed):
    """Someone edits a JSON file and accepts the change: errors are still one line."""
    rng = random.Random(seed)
    for number in range(max(4, CASES // 4)):
        folder = tmp_path / str(number)
        shutil.copytree(indexed, folder)
        path = rng.choice([path for path in files_of(folder) if path.suffix == ".json" and path.name != NAME])
        content = json.loads(path.read_text())
        key = rng.choice(list(content)) if isinstance(content, dict) and content and rng.random() < 0.9 else None
        value = rng.choice(VALUES)
        if key is None:
            content = value
        elif rng.random() < 0.3:
            del content[key]
        else:
            content[key] = value
        path.write_text(json.dumps(content))
        judge(lambda folder=folder: verify(folder, accept=True), f"accept {path.name}.{key} = {value!r}")
        judge(lambda folder=folder: use(folder), f"seed {seed}, {path.name}.{key} = {value!r}, accepted")
        shutil.rmtree(folder)
