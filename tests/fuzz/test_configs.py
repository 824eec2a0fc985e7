"""Broken configs: nothing that makes no sense is trained."""

import random

import pytest
import yaml

from crossclr.training import dump_config, load_config
from tests.fuzz.verdicts import broken_bytes, judge, share
from tests.support.tiny_runs import tiny_values

BATCHES, CASES = share(1_000, 20)
NONSENSE = [float("inf"), float("nan"), float("-inf"), [[]], {"x": {"y": 1}}, "\0", 10**400, [1, [2, [3]]]]
ODD = [None, -1, 0, 1, 2**31, 2**64, 1e300, -1e300, "", "..", "../x", "train", True, [], {}, 1e-300, "1e3", "é" * 300]
FREE = ("about", "data.root", "data.modalities", "data.split_parts")  # any text or mapping is allowed there


def leaves(values, path=()):
    """The dotted names of all single values."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def put(values, path, value):
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = value


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return yaml.safe_load(dump_config(load_config(_written(tiny_values("/data"), tmp_path_factory.mktemp("base")))))


def _written(values, folder):
    path = folder / "config.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def mutate(base, rng):
    """(description, text or bytes, must_refuse) of one broken config."""
    values = yaml.safe_load(yaml.safe_dump(base))
    path = rng.choice(list(leaves(base)))
    name = ".".join(path)
    kind = rng.choice(["nonsense", "odd", "unknown", "repeated", "bytes", "deep", "aliases"])
    if kind in ("nonsense", "odd"):
        value = rng.choice(NONSENSE if kind == "nonsense" else ODD)
        put(values, path, value)
        return f"{name} = {value!r:.60}", values, True if kind == "nonsense" and name not in FREE else None
    if kind == "unknown":
        put(values, (*path[:-1], "nosuchfield"), 1)
        return f"unknown field next to {name}", values, True
    text = yaml.safe_dump(values, sort_keys=False)
    lines = text.splitlines(keepends=True)
    if kind == "repeated":
        place = rng.choice([n for n, line in enumerate(lines) if ":" in line and not line.lstrip().startswith("-")])
        indent = len(lines[place]) - len(lines[place].lstrip())
        end = next((n for n in range(place + 1, len(lines)) if len(lines[n]) - len(lines[n].lstrip()) <= indent
                    and not lines[n].lstrip().startswith("- ")), len(lines))  # fmt: skip
        return f"line {place + 1} twice", "".join(lines[:end] + lines[place:end] + lines[end:]), True
    if kind == "deep":
        put(values, path, "DEEP")
        depth = rng.choice([70, 1_000, 50_000])
        return f"{name} of depth {depth}", yaml.safe_dump(values).replace("DEEP", "[" * depth + "]" * depth), True
    if kind == "aliases":
        bomb = "x0: &x0 [1, 1]\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 9))
        return "aliases", bomb + text, True
    return *broken_bytes(text.encode(), rng), None


@pytest.mark.parametrize("seed", BATCHES)
def test_broken_configs(base, tmp_path, seed):
    rng = random.Random(seed)
    for number in range(CASES):
        case, content, must = mutate(base, rng)
        path = tmp_path / f"{number}.yaml"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        verdict = judge(lambda path=path: load_config(path), f"seed {seed}, {case}", must)
        if not verdict.refused:  # what was read is what is stored with a run
            again = tmp_path / "again.yaml"
            again.write_text(dump_config(verdict.result), encoding="utf-8")
            assert load_config(again) == verdict.result, case


OVERRIDES = ["training.epochs=[", "a.b.c", "=1", "loss.local={name: clip, name: clip}", "model.dim=1000000000000",
             "optimiser.learning_rate=.nan", "training.batch_size=1e9999", "seed=-1", "name=..", "name=/etc",
             "seed=99999999999999999999", "optimiser.epsilon=.inf", "loss.local.temperature=.inf", "data=null",
             "loss.global_weight=.inf", "model.encoder={kind: mlp, blocks: 1000000}",
             "model={dim: 65536, encoder: {kind: mlp, blocks: 256}}",
             "model={encoder: null, encoders: {text: {}}}", r'splits.train="\0"']  # fmt: skip


@pytest.mark.parametrize("override", OVERRIDES)
def test_overrides_that_make_no_sense(override):
    judge(lambda: load_config("emoji", [override]), override, must_refuse=True)
