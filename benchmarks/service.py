"""The search service under load: many clients, thumbnails, a changing index and a busy core.

    python -m benchmarks.service                                  100,000 items, 16 clients for 60 s
    python -m benchmarks.service --rebuilds 2 --busy 1            the index is replaced twice while a core is busy

Each client searches and then loads the thumbnails of its results, one request after another. Every answer is compared
with the answer of the same index in this process. Only the loopback address is used, and everything ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search import draw, request, resident, service

ROWS, DIM, SECONDS, CLIENTS, TOP, QUERIES, FILES = 100_000, 384, 60.0, 16, 24, 400, 1000
BUSY = "import time, sys\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


def make_run(root: Path, rows: int, dim: int) -> Path:
    """A folder with an index and previews, as the service opens it; returns the generation."""
    from crossclr.search.faiss_index import FaissIndex
    from crossclr.search.index import CODES, FORMAT, INDEX, ITEMS, MAP, META, current_generation, new_generation
    from crossclr.search.items import Item, Items, Previews

    with new_generation(root / INDEX) as folder:
        index = FaissIndex(dim)
        index.add(np.arange(rows), draw(rows, dim, seed=1))
        index.compact(draw(200, dim, seed=3))
        index.save(folder / "video")
        items = Items(folder / ITEMS, writable=True)
        items.put(
            Item(
                row, f"video/{row}", "video", str(row), f"clip {row}", "train", media="video", file=f"{row % FILES}.mp4"
            )
            for row in range(rows)
        )
        items.close()
        np.save(folder / CODES, np.zeros((rows, 0)))
        (folder / MAP).write_text("{}")
        about = {"label": "videos", "count": rows, "media": ["video"], "kind": index.kind}
        meta = {
            "format": FORMAT,
            "name": "load",
            "about": "",
            "weights": "",
            "dim": dim,
            "text_modality": None,
            "text_modalities": [],
        }
        meta |= {"media_roots": [], "backend": "faiss", "filters": []}
        (folder / META).write_text(json.dumps(meta | {"modalities": {"video": about}}))
    previews = Previews(root, writable=True)
    for number in range(min(FILES, rows)):
        previews.put(Item(0, "", "video", "", file=f"{number}.mp4"), np.random.default_rng(number).bytes(4000))
    previews.close()
    found = current_generation(root / INDEX)
    assert found is not None
    return found


class Load:
    """What the clients saw."""

    def __init__(self) -> None:
        self.searches: list[float] = []
        self.previews: list[float] = []
        self.errors = self.wrong = 0

    async def client(self, port: int, requests: list[bytes], expected: list[list[str]], first: int, end: float) -> None:
        """Search and load thumbnails over one connection until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def ask(content: bytes, seconds: list[float]) -> bytes:
            started = time.perf_counter()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            seconds.append(time.perf_counter() - started)
            self.errors += not head.startswith(b"HTTP/1.1 200")
            return body

        while time.perf_counter() < end:
            place = first % len(requests)
            found = json.loads(await ask(requests[place], self.searches)).get("results", [])
            self.wrong += [one["id"] for one in found] != expected[place]
            for one in found[:TOP]:
                await ask(f"GET /preview?id={one['id']} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), self.previews)
            first += 1
        writer.close()


def rebuild(root: Path, times: int, seconds: float, stop: threading.Event) -> None:
    """Replace the index by a new generation, spread over the time."""
    from crossclr.search.index import INDEX, current_generation, new_generation

    for _ in range(times):
        if stop.wait(seconds / (times + 1)):
            return
        before = current_generation(root / INDEX)
        assert before is not None
        with new_generation(root / INDEX) as folder:
            shutil.copytree(before, folder, dirs_exist_ok=True)


def run(
    rows: int = ROWS, dim: int = DIM, seconds: float = SECONDS, clients: int = CLIENTS, rebuilds: int = 0, busy: int = 0
) -> dict[str, Any]:
    """Milliseconds of searches and thumbnails, errors, wrong answers and growth of memory."""
    from crossclr.search.searcher import Searcher

    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "run"
        folder = make_run(root, rows, dim)
        queries = draw(QUERIES, dim, seed=2)
        searcher = Searcher(folder)
        rounded = [[round(x, 6) for x in row.tolist()] for row in queries]
        expected = [[hit.item.name for hit in searcher.search(vector=row, top=TOP)] for row in rounded]
        searcher.close()
        requests = [request({"vector": row, "top": TOP}) for row in rounded]
        loads = [subprocess.Popen([sys.executable, "-c", BUSY, str(seconds + 30)]) for _ in range(busy)]
        stop = threading.Event()
        changes = threading.Thread(target=rebuild, args=(root, rebuilds, seconds, stop))
        try:
            with service("index", folder) as (port, process):

                async def all_clients(load: Load, length: float) -> None:
                    end = time.perf_counter() + length
                    step = QUERIES // clients
                    parts = (load.client(port, requests, expected, n * step, end) for n in range(clients))
                    await asyncio.gather(*parts)

                asyncio.run(all_clients(Load(), min(5.0, seconds)))  # warm up
                before, load = resident(process), Load()
                changes.start()
                asyncio.run(all_clients(load, seconds))
                after = resident(process)
        finally:
            stop.set()
            for one in loads:
                one.kill()
            if changes.is_alive():
                changes.join()
    ordered = np.sort(load.searches) * 1000
    return {
        "searches": len(ordered),
        "search_p50_ms": float(ordered[len(ordered) // 2]),
        "search_p99_ms": float(ordered[int(0.99 * len(ordered))]),
        "previews": len(load.previews),
        "preview_p50_ms": float(np.median(load.previews)) * 1000,
        "errors": load.errors,
        "wrong_answers": load.wrong,
        "memory_mb": before,
        "memory_growth_percent": 100 * (after - before) / before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The search service under load.")
    for name, value in (("rows", ROWS), ("dim", DIM), ("clients", CLIENTS), ("rebuilds", 0), ("busy", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    print(json.dumps(run(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
