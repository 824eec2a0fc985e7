"""METEOR's Java program: what it gives, and what happens where it is missing, dies or hangs."""

import os
import stat
import time
from pathlib import Path

import pytest

from crossclr.captions.caption_metrics import Caption, score_captions
from crossclr.captions.meteor import Meteor, MeteorError


def program(folder: Path, text: str) -> str:
    path = folder / "fake-java"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def meteor(predictions, references, **options):
    with Meteor(**options) as running:
        return running.score(predictions, references)


def test_equal_texts_score_one_and_others_less(running_meteor):
    total, each = running_meteor.score(
        ["a man cuts an onion", "a dog"], [["a man cuts an onion"], ["the cat sleeps", "a cat"]]
    )
    assert each[0] == pytest.approx(1.0)
    assert 0 <= each[1] < 0.5
    assert each[1] < total < each[0]


def test_marks_of_the_protocol_in_a_text_do_no_harm(running_meteor):
    total, each = running_meteor.score(["a ||| b\nc"], [["a b c"]])
    assert total == pytest.approx(1.0)
    assert len(each) == 1


def test_nothing_to_score(running_meteor):
    assert running_meteor.score([], []) == (0.0, [])


def test_missing_java():
    with pytest.raises(MeteorError, match="needs Java"):
        meteor(["a"], [["a"]], java="no-such-java")


def test_a_program_that_dies_tells_why(tmp_path):
    fake = program(tmp_path, "echo 'out of memory' >&2; exit 3")
    with pytest.raises(MeteorError, match=r"ended early: out of memory"):
        meteor(["a"], [["a"]], java=fake)


def test_a_program_that_floods_its_messages_does_not_block(tmp_path):
    fake = program(tmp_path, "yes complaint | head -c 300000 >&2; exit 1")
    with pytest.raises(MeteorError, match="complaint"):
        meteor(["a"], [["a"]], java=fake, seconds=20)


def test_a_program_that_talks_nonsense(tmp_path):
    fake = program(tmp_path, "while read line; do echo nonsense; echo nonsense; done")
    with pytest.raises(MeteorError, match="nonsense"):
        meteor(["a"], [["a"]], java=fake, seconds=20)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are needed")
def test_a_program_that_hangs_is_ended_with_its_children_and_the_rest_is_scored(tmp_path):
    pid = tmp_path / "pid"
    fake = program(tmp_path, f"sleep 300 & echo $! > {pid}; wait")
    began = time.monotonic()
    found = score_captions({"v": [Caption("a b")]}, {"v": ["a b"]}, java=fake, meteor_seconds=1.0)
    assert time.monotonic() - began < 30
    assert found.metrics["METEOR"] is None
    assert found.metrics["Bleu_1"] == pytest.approx(100)
    assert "no answer for 1 s" in found.notes[0]
    status = Path("/proc") / pid.read_text().strip() / "status"
    if Path("/proc/self/status").exists():
        for _ in range(100):  # the end of a child shows a moment later
            if not status.exists() or "zombie" in status.read_text():
                break
            time.sleep(0.05)
        else:
            pytest.fail("the child is still alive")


def test_a_large_corpus_does_not_block_the_pipes(tmp_path):
    # answers only after it has read everything: with a writer that waits for answers this would never end
    fake = program(
        tmp_path,
        "n=0; while read line; do n=$((n+1)); [ $n = 400 ] && break; done; i=0; "
        "while [ $i -lt 400 ]; do echo 1; i=$((i+1)); done; read line; i=0; "
        "while [ $i -lt 401 ]; do echo 0.5; i=$((i+1)); done",
    )
    total, each = meteor(["word " * 100] * 400, [["word " * 100]] * 400, java=fake, seconds=30)
    assert total == 0.5
    assert len(each) == 400
