"""Broken caption files: clear errors, and nothing empty or outside its recording."""

import json
import random

import pytest

from crossclr.extract.caption_files import read_captions
from tests.fuzz.verdicts import broken_bytes, judge, share

BATCHES, CASES = share(320, 8)
TABLE = 'file,text,start,stop\na.mp4,a dog runs,0,2\na.mp4,it stops,2,4\nb.mp4,"a cat, asleep",,\n'
GOOD = {
    "table.csv": TABLE,
    "table.tsv": TABLE.replace('"a cat, asleep"', "a cat asleep").replace(",", "\t"),
    "list.json": json.dumps(
        [{"file": "a.mp4", "text": "a dog", "start": 0, "stop": 2}, {"file": "b.mp4", "text": "x"}]
    ),
    "object.json": json.dumps({"a.mp4": ["a dog", "it runs"], "b.mp4": "a cat"}),
    "coot.json": json.dumps(
        {"a": {"data_key": "a", "segments": [{"text": "a dog", "start_sec": 0, "stop_sec": 2}], "split": "train"}}
    ),
    "activitynet.json": json.dumps({"a": {"timestamps": [[0, 2]], "sentences": ["a dog"]}}),
}
WRONG = {
    "nul.csv": "file,text\na,b\0c\n",
    "quote.csv": 'file,text\na,"b\nc,d\n',
    "long.csv": f"file,text\na,{'x' * 200_000}\n",
    "columns.csv": "file,text,text\na,b,c\n",
    "fields.csv": "file,text\na,b,c,d\n",
    "null.json": '{"a": [null]}',
    "nested.json": '{"a": [["x"]]}',
    "number.json": '{"a": 3}',
    "repeated.json": '{"a": "x", "a": "y"}',
    "deep.json": "[" * 100_000 + "]" * 100_000,
    "times.json": '{"a": {"timestamps": [[2, "soon"]], "sentences": ["x"]}}',
    "counts.json": '{"a": {"timestamps": [[0, 2]], "sentences": ["x", "y"]}}',
    "empty.csv": "",
    "scalar.json": "3",
}


def read(path):
    found = read_captions(path)
    for entry in found:
        for segment in entry.segments:
            assert segment.text.strip()
            if segment.start is not None and segment.stop is not None:
                segment.within(1e9)
    if not found:
        raise ValueError("no captions")
    return found


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("seed", BATCHES)
def test_damaged_files(tmp_path, name, seed):
    rng = random.Random(f"{name}{seed}")
    path = tmp_path / name
    path.write_text(GOOD[name])
    judge(lambda: read(path), name, must_refuse=False)
    for _ in range(-(-CASES // len(GOOD))):
        case, content = broken_bytes(GOOD[name].encode(), rng)
        path.write_bytes(content)
        judge(lambda: read(path), f"{name}: {case}", True if case.startswith("empty") else None)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_captions_are_refused(tmp_path, name):
    (tmp_path / name).write_text(WRONG[name])
    judge(lambda: read(tmp_path / name), name, must_refuse=True)
