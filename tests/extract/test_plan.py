import json

import h5py
import pytest

pytest.importorskip("av", reason="needs crossclr[experts]")

from crossclr.extract import Settings
from crossclr.extract.extraction import Extraction
from crossclr.extract.plan import plan_extraction
from crossclr.extract.recordings import list_media
from tests.support.fake_experts import Colour, Letters, Loudness, Motion
from tests.support.media import GREEN, RED, tone, write_video


@pytest.fixture
def job(tmp_path):
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos" / "a.mp4", [RED] * 20, sound=tone(2.0))
    write_video(tmp_path / "videos" / "b.mp4", [GREEN] * 10)
    (tmp_path / "videos" / "c.mp4").write_bytes(b"noise")
    (tmp_path / "captions.json").write_text(json.dumps(dict.fromkeys(("a", "b", "c"), "a few words")))
    listing = list_media(tmp_path / "videos", tmp_path / "captions.json")
    return Extraction(listing, tmp_path / "out", [Colour(), Motion(), Loudness(), Letters()], Settings())


def test_a_plan_writes_nothing_and_foretells_rows_and_bytes(job):
    plan = plan_extraction(job)
    assert not job.out.exists()
    assert (plan.recordings, plan.finished) == (3, 0)
    assert plan.hours == pytest.approx(3 / 3600, rel=0.01)
    assert [problem.name for problem in plan.problems] == ["c.mp4"]
    assert plan.seconds > 0
    assert plan.decoding > 0
    expected = {share.expert: (share.rows, share.bytes) for share in plan.shares}
    job.run()
    for name in ("colour", "loudness"):
        with h5py.File(job.out / f"{name}.h5") as file:
            assert expected[name] == (
                sum(len(rows) for rows in file.values()),
                sum(rows.nbytes for rows in file.values()),
            )
    again = plan_extraction(Extraction(job.listing, job.out, job.experts, Settings()), measure=False)
    assert (again.recordings, again.finished) == (1, 2)  # only the damaged one; the one without sound is known
    assert {share.rows for share in again.shares if share.expert != "letters"} == {0}
