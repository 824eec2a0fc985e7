"""Videos that play from the right second, and sounds, in a real Chromium."""

import base64
import json
import math
import shutil
import struct
import wave

from crossclr.data.sample import clip_keys
from crossclr.search import build_index
from crossclr.training import Run
from tests.search.items.test_media_files import videos  # noqa: F401
from tests.search.service.test_page import Service, Visit, browser  # noqa: F401
from tests.support.media import RED, write_video

RECORD = """async () => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 64, height: 48});
  const context = canvas.getContext('2d');
  const recorder = new MediaRecorder(canvas.captureStream(20), {mimeType: 'video/webm'});
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start(200);
  for (let frame = 0; frame < 40; frame++) {
    context.fillStyle = `hsl(${frame * 9} 80% 50%)`;
    context.fillRect(0, 0, 64, 48);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  recorder.stop();
  await ended;
  const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}"""


def write_sound(path, seconds=3):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        samples = (int(9000 * math.sin(place / 4)) for place in range(8000 * seconds))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))


def test_a_video_begins_at_its_second_and_a_sound_plays(browser, videos, tmp_path):  # noqa: F811
    run, entries, _ = videos
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    media = tmp_path / "media"
    media.mkdir()
    page = browser.new_page()
    (media / "film.webm").write_bytes(base64.b64decode(page.evaluate(RECORD)))
    page.close()
    write_sound(media / "tone.wav")
    keys = [key for entry in entries for key in clip_keys(entry.key, len(entry.texts))]
    table = {key: {"file": "media/tone.wav", "start": 1.5, "stop": 2.5} for key in keys}
    table[keys[0]] = {"file": "media/film.webm", "start": 1.0, "stop": 1.8, "fields": {"place": "Rome"}}
    write_video(media / "old.avi", [RED] * 20)
    table[keys[2]] = {"file": "media/old.avi", "start": 0.0, "stop": 2.0, "fields": {"place": "Rome"}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    build_index(copy, splits=sorted({entry.split for entry in entries}), media=tmp_path / "table.json")
    service = Service(Run.open(copy))
    try:
        visit = Visit(browser, service.address)
        # the text features are not those of the text expert, so only words can be searched
        assert "file name" in visit.page.get_attribute("#query", "placeholder")
        visit.page.goto(f"{service.address}?like=text/{keys[0]}&find=video")
        visit.settled()
        assert len(visit.names()) == 3  # all moments of the sound are one card
        loaded = "[...document.querySelectorAll('.poster img')].every((one) => one.naturalWidth)"
        visit.page.wait_for_function(f"() => {loaded}")
        visit.page.hover(f"[data-id='video/{keys[0]}'] .open")  # the other film is no format of browsers
        visit.page.wait_for_selector(".poster.video video")
        visit.shot("desktop-7-posters")
        for kind, start, key in (("video", 1.0, keys[0]), ("audio", 1.5, keys[1])):
            visit.page.goto(f"{service.address}?like=text/{keys[0]}&find=video&item=video/{key}")
            visit.page.wait_for_selector(f"#detail-body {kind}", state="attached")
            second = visit.page.evaluate(
                """async (kind) => {
                  const player = document.querySelector(`#detail-body ${kind}`);
                  player.muted = true;
                  await player.play();
                  await new Promise((resolve) => setTimeout(resolve, 120));
                  return player.currentTime;
                }""",
                kind,
            )
            assert start <= second < start + 1
        visit.shot("desktop-8-players")
        visit.page.goto(
            f"{service.address}?like=text/{keys[0]}&find=video&item=video/{keys[2]}"
        )  # browsers play no AVI
        visit.page.wait_for_selector("#detail-body .hint:has-text('Converted for your browser.')")
        width = visit.page.evaluate("() => document.querySelector('#detail-body video').videoWidth")
        assert width == 64
        visit.page.goto(f"{service.address}?like=text/{keys[0]}&find=video&where=duration%3D..0.9")
        visit.settled()
        assert visit.names() == [f"video/{keys[0]}"]
        assert visit.page.locator("#filter-duration input").nth(1).input_value() == "0.9"
        visit.end()
    finally:
        service.stop()
