"""Search against bare faiss, over HTTP and in the process; a million vectors; sentences as they are typed.

    python -m benchmarks.search                                     everything: about a quarter of an hour on two cores
    python -m benchmarks.search --rows 20000 --large-rows 50000 --seconds 3

Vectors have 24 hidden dimensions and some noise, as embeddings have; queries are further draws, not rows of the index.
The service runs in a process of its own; its clients are sockets that stay open and send prepared requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
ROWS, DIM, LARGE_ROWS, LARGE_DIM, SECONDS, CLIENTS, QUERIES = 100_000, 384, 1_000_000, 256, 60.0, 16, 1000


def draw(count: int, dim: int, seed: int, hidden: int = 24, noise: float = 0.3) -> Array:
    """Unit vectors with a few hidden dimensions."""
    mixing = np.random.default_rng(hidden).standard_normal((hidden, dim)).astype(np.float32)
    rng = np.random.default_rng(seed)
    out = np.empty((count, dim), dtype=np.float32)
    for start in range(0, count, 100_000):
        part = slice(start, min(start + 100_000, count))
        size = part.stop - start
        rows = rng.standard_normal((size, hidden), dtype=np.float32) @ mixing / hidden**0.5
        rows += noise * rng.standard_normal((size, dim), dtype=np.float32)
        out[part] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return out


def recall(found: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float:
    return float((found[:, :, None] == true[:, None, :]).any(2).mean())


def make_index(folder: Path, vectors: Array) -> dict[str, float]:
    """An index with items in the form that the service opens; the time is of the vectors alone."""
    from crossclr.search.faiss_index import FaissIndex
    from crossclr.search.index import CODES, FORMAT, ITEMS, MAP, META
    from crossclr.search.items import Item, Items
    from crossclr.storage.manifest import seal

    folder.mkdir(parents=True)
    index = FaissIndex(vectors.shape[1])
    started = time.perf_counter()
    index.add(np.arange(len(vectors)), vectors)
    index.compact(draw(200, vectors.shape[1], seed=3))
    built = time.perf_counter() - started
    started = time.perf_counter()
    index.save(folder / "a")
    saved = time.perf_counter() - started
    items = Items(folder / ITEMS, writable=True)
    items.put(Item(row, f"a/{row}", "a", str(row), text=f"sample {row}", split="train") for row in range(len(vectors)))
    items.close()
    np.save(folder / CODES, np.zeros((len(vectors), 0)))
    (folder / MAP).write_text("{}")
    about = {"label": "items", "count": len(vectors), "media": []}
    meta = {
        **{
            "format": FORMAT,
            "name": "bench",
            "about": "",
            "weights": "",
            "dim": vectors.shape[1],
            "text_modality": None,
            "text_modalities": [],
        },
        **{"media_roots": [], "backend": "faiss", "filters": []},
        "modalities": {"a": {**about, "kind": index.kind, "recall": index.recall}},
    }
    (folder / META).write_text(json.dumps(meta))
    seal(folder)
    return {"build_seconds": built, "save_seconds": saved}


SERVE = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from crossclr.search.searcher import Searcher
from crossclr.search.service.server import make_server
what, place = sys.argv[1:]
searcher = Searcher.open(place) if what == "run" else Searcher(Path(place))
server, listening = make_server(searcher, port=0, ready=lambda address: print(address, flush=True))
server.run(sockets=[listening])
"""


@contextmanager
def service(what: str, place: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of a service in a separate process."""
    child = subprocess.Popen([sys.executable, "-c", SERVE, what, str(place)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError("the service did not start")
        yield int(line.rstrip("/\n").rsplit(":", 1)[1]), child.pid
    finally:
        child.terminate()
        child.wait(20)


def request(values: dict[str, Any]) -> bytes:
    body = json.dumps(values).encode()
    head = "POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _client(
    port: int, requests: Sequence[bytes], first: int, until: float, seconds: list[float], most: float = float("inf")
) -> int:
    """Send requests one after another over one connection; returns how many failed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    errors, place = 0, first
    while time.perf_counter() < until and place - first < most:
        started = time.perf_counter()
        writer.write(requests[place % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        seconds.append(time.perf_counter() - started)
        errors += not head.startswith(b"HTTP/1.1 200")
        place += 1
    writer.close()
    return errors


def load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Answers per second, latencies in milliseconds and errors with a number of clients."""

    async def run_all() -> tuple[list[float], int]:
        taken: list[float] = []
        until = time.perf_counter() + seconds
        step = max(1, len(requests) // clients)
        errors = await asyncio.gather(*(_client(port, requests, n * step, until, taken) for n in range(clients)))
        return taken, sum(errors)

    started = time.perf_counter()
    taken, errors = asyncio.run(run_all())
    passed = time.perf_counter() - started
    ordered = np.sort(np.array(taken)) * 1000
    return {
        "per_second": len(taken) / passed,
        "p50_ms": float(ordered[len(ordered) // 2]),
        "p99_ms": float(ordered[int(len(ordered) * 0.99)]),
        "errors": errors,
        "requests": len(taken),
    }


def resident(process: int | str = "self") -> float:
    """Megabytes of private memory of a process; pages of mapped files do not count."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def measure_http(rows: int, dim: int, seconds: float, clients: int, folder: Path) -> dict[str, Any]:
    """HNSW: recall, overhead over bare faiss, throughput over HTTP, and a long run without growth."""
    import faiss

    from crossclr.search.searcher import Searcher

    faiss.omp_set_num_threads(2)
    vectors, queries = draw(rows, dim, seed=1), draw(QUERIES, dim, seed=2)
    results: dict[str, Any] = {"rows": rows, "dim": dim, **make_index(folder, vectors)}
    _, true = faiss.knn(queries, vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)
    del vectors
    faiss.omp_set_num_threads(1)
    searcher = Searcher(folder)
    index: Any = searcher.indexes["a"]
    results["kind"] = index.kind
    results["recall_at_10"] = recall(index.search(queries, 10)[1], true)
    if index.graph is not None:
        bare = faiss.read_index(str(folder / "a" / "graph" / "graph.faiss"))
        parameters: Any = faiss
        parameters = parameters.SearchParametersHNSW(efSearch=max(index.graph.effort, 20))
        taken: dict[str, list[float]] = {"bare": [], "ours": []}
        for number in range(2 * len(queries)):  # in turns, so that a busy moment hits both
            query = queries[number % len(queries)][None]
            started = time.perf_counter()
            bare.search(query, 10, params=parameters)
            middle = time.perf_counter()
            searcher.search(vector=query[0], top=10)
            ended = time.perf_counter()
            if number >= 100:
                taken["bare"].append(middle - started)
                taken["ours"].append(ended - middle)
        medians = {name: statistics.median(values) * 1000 for name, values in taken.items()}
        results |= {"bare_faiss_ms": medians["bare"], "search_ms": medians["ours"]}
        results["overhead_ms"] = medians["ours"] - medians["bare"]
    searcher.close()
    requests = [request({"vector": [round(x, 6) for x in row.tolist()], "top": 10}) for row in queries]
    with service("index", folder) as (port, process):
        load(port, requests, clients, min(2.0, seconds))
        alone = load(port, requests, 1, min(5.0, seconds))
        results["http_alone_p50_ms"] = alone["p50_ms"]
        before = resident(process)
        loaded = load(port, requests, clients, seconds)
        results |= {f"http_{clients}_clients_{name}": value for name, value in loaded.items()}
        results["memory_growth_mb"] = resident(process) - before
    return results


OPEN = """
import json, sys, time
from pathlib import Path
import numpy as np
import faiss
faiss.omp_set_num_threads(1)
from benchmarks.search import QUERIES, draw, recall, resident
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.searcher import Searcher
folder, dim = Path(sys.argv[1]), int(sys.argv[2])
before = resident()
started = time.perf_counter()
searcher = Searcher(folder)
opened = time.perf_counter() - started
index = searcher.indexes["a"]
queries = draw(QUERIES, dim, seed=2)
true = np.load(sys.argv[3])
found = index.search(queries, 10)[1]
taken = []
for query in queries:
    started = time.perf_counter()
    searcher.search(vector=query, top=10)
    taken.append(time.perf_counter() - started)
taken = np.sort(taken) * 1000
print(json.dumps({"kind": index.kind, "open_seconds": opened, "p50_ms": float(taken[len(taken) // 2]),
                  "p99_ms": float(taken[int(0.99 * len(taken))]), "recall_at_10": recall(found, true),
                  "memory_mb": resident() - before}))
"""


def measure_large(rows: int, dim: int, folder: Path) -> dict[str, Any]:
    """Millions: time to build, bytes, time to open by memory map, latencies, recall, memory."""
    import faiss

    vectors = draw(rows, dim, seed=1)
    results: dict[str, Any] = {"rows": rows, "dim": dim, **make_index(folder, vectors)}
    _, true = faiss.knn(draw(QUERIES, dim, seed=2), vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)
    np.save(folder / "true.npy", true)
    del vectors
    results["disk_mb"] = sum(file.stat().st_size for file in (folder / "a").rglob("*") if file.is_file()) / 1e6
    arguments = [str(folder), str(dim), str(folder / "true.npy")]
    done = subprocess.run([sys.executable, "-c", OPEN, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {**results, **json.loads(done.stdout.strip().splitlines()[-1])}


WORDS = [
    "person",
    "who",
    "cuts",
    "red",
    "tomatoes",
    "with",
    "sharp",
    "knife",
    "old",
    "wooden",
    "board",
    "dog",
    "sleeps",
]


def measure_typing(folder: Path) -> dict[str, Any]:
    """Typed sentences: every prefix is a separate query over HTTP, encoding included."""
    from crossclr import api
    from crossclr.search import build_index

    run = api.train("emoji", ["recipe=paper", "training.epochs=1"], out=folder / "run", baseline=False)
    build_index(run)
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(12):
        sentence = " ".join(rng.permutation(WORDS)[:6])
        texts += [sentence[:end] for end in range(3, len(sentence), 2)]
    requests = [request({"text": text, "top": 24}) for text in dict.fromkeys(texts)]
    with service("run", run.path) as (port, _):
        load(port, [request({"text": "warm up"})], 1, 0.5)
        taken: list[float] = []
        asyncio.run(_client(port, requests, 0, float("inf"), taken, most=len(requests)))
    ordered = np.sort(np.array(taken)) * 1000
    return {
        "queries": len(ordered),
        "p50_ms": float(ordered[len(ordered) // 2]),
        "p99_ms": float(ordered[int(len(ordered) * 0.99)]),
    }


def run(
    rows: int = ROWS,
    dim: int = DIM,
    large_rows: int = LARGE_ROWS,
    large_dim: int = LARGE_DIM,
    seconds: float = SECONDS,
    clients: int = CLIENTS,
) -> dict[str, Any]:
    """All parts; the name of a result starts with its part."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts = {
            "typing": measure_typing(folder / "typing"),
            "http": measure_http(rows, dim, seconds, clients, folder / "http"),
            "large": measure_large(large_rows, large_dim, folder / "large"),
        }
    for part, found in parts.items():
        results |= {f"{part}_{name}".replace("http_http", "http"): value for name, value in found.items()}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Search against bare faiss.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--large-rows", type=int, default=LARGE_ROWS)
    parser.add_argument("--large-dim", type=int, default=LARGE_DIM)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    print(json.dumps(run(**vars(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
