"""`crossclr serve`: the service as an ASGI application, and the server that runs it until the process ends."""

import asyncio
import contextlib
import ipaddress
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError
from starlette.routing import Route

from crossclr import __version__
from crossclr.errors import ReadError
from crossclr.search.query import QueryError
from crossclr.search.quick_search import HEADER, announce, new_instance
from crossclr.search.searcher import Searcher
from crossclr.search.service.access import HEALTH, METRICS, Access, Counters, Limits, PatientProtocol
from crossclr.search.service.file_routes import FileTokens, ReloadingSearcher, add_files
from crossclr.search.service.search_routes import add_captions, add_items, add_media, add_search, warm_up_images
from crossclr.training import Run

CONNECTIONS = 256


def serve_run(
    run: Run | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    token: str | None = None,
    log: bool = False,
    workers: int = 1,
) -> None:
    """Serve a run until the process ends.

    Args:
        run: a run that has an index, or its folder.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        ready: called with the address once the service answers.
        token: what every request must carry; None: nothing.
        log: whether to write a JSON line for each request to standard error.
        workers: number of processes that answer; they share the vectors in memory, and each has its own encoders.

    Raises:
        OSError: the port is in use, or a worker ended.
    """
    searcher, instance = Searcher.open(run, text=workers == 1), new_instance()
    if workers == 1:
        server, listening = make_server(searcher, host, port, ready, instance, token, log)
        serve = partial(server.run, sockets=[listening])
    else:
        listening, path = listen(host, port), run.path if isinstance(run, Run) else Path(run)
        serve = partial(_run_workers, workers, ready, (path, listening, host, instance, token, log))
    with announce(searcher.folder.parent, instance, host, listening.getsockname()[1], searcher.meta["weights"]):
        serve()


def _run_workers(workers: int, ready: Callable[[str], None] | None, arguments: tuple[Any, ...]) -> None:
    """Start the workers and wait until the process is to end; a worker that ends by itself ends all."""
    context = multiprocessing.get_context("spawn")  # threads and locks do not survive a fork
    started = context.Event()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as private:
        tokens = str(Path(private) / "files.sqlite")
        processes = [context.Process(target=_work, args=(*arguments, tokens, started)) for _ in range(workers)]
        try:
            for process in processes:
                process.start()
            while not started.wait(0.1) and all(process.is_alive() for process in processes):
                pass
            if started.is_set() and ready is not None:
                ready(_address(arguments[2], arguments[1]))
            multiprocessing.connection.wait([process.sentinel for process in processes])
            raise OSError("a worker of the service ended, so the service stopped; its messages are above")
        except KeyboardInterrupt:
            pass
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(10)


def _work(
    run: Path, listening: socket.socket, host: str, instance: str, token: str | None, log: bool, tokens: str, ready: Any
) -> None:
    """One of several workers: answers at a socket that all share, and ends with the process that started it."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    server, _ = make_server(
        Searcher.open(run),
        host,
        ready=lambda _: ready.set(),
        instance=instance,
        token=token,
        log=log,
        listening=listening,
        tokens=tokens,
    )
    server.run(sockets=[listening])


def make_server(
    searcher: Searcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    instance: str | None = None,
    token: str | None = None,
    log: bool = False,
    listening: socket.socket | None = None,
    tokens: str = ":memory:",
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that already listens; it answers after ``server.run(sockets=[...])``.

    Workers share the socket ``listening``, and the file ``tokens`` with the vectors of files that were sent.
    """
    faiss.omp_set_num_threads(1)  # more threads do not speed up a single query, and requests run in parallel
    at = listening or listen(host, port)

    def started() -> None:
        if ready is not None:
            ready(_address(host, at))

    config = uvicorn.Config(
        create_app(searcher, _hosts(host), started, token, log, tokens),
        http=PatientProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        headers=[(HEADER, instance)] if instance else [],
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config), at


def _address(host: str, listening: socket.socket) -> str:
    return f"http://{_in_address(host)}:{listening.getsockname()[1]}/"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        OSError: the port is in use, or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol asyncio turns off Nagle's algorithm, which delays answers by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(CONNECTIONS)  # now, so that early callers wait instead of being refused
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}; choose another with --port") from error
    return listening


def _hosts(host: str) -> list[str] | None:
    """Host headers of a service on the loopback address; None for a service that is open to other machines."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", _in_address(host)] if local else None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SHORT = {"/index.html": "/", "/docs.html": "/docs"}  # addresses that differ from the name of their file
_LOG = logging.getLogger("crossclr.search")


def create_app(
    searcher: Searcher,
    hosts: Sequence[str] | None = None,
    started: Callable[[], None] | None = None,
    token: str | None = None,
    log: bool = False,
    tokens: str = ":memory:",
) -> Any:
    """The service for an opened index, as an ASGI application.

    Args:
        searcher: the opened index.
        hosts: Host headers to answer; None: any.
        started: called once the service answers.
        token: what every request must carry; None: nothing.
        log: whether to write a JSON line for each request to standard error.
        tokens: SQLite file with the vectors of files that were sent; workers share it. Default: this process only.
    """
    searchers = ReloadingSearcher(searcher)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_warm_up, searcher)
        watching = asyncio.create_task(searchers.watch())
        if started is not None:
            started()
        yield
        watching.cancel()

    app = FastAPI(
        title=f"crossclr: {searcher.meta['name']}",
        description="Search across modalities, such as text, sound and video.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from other sites; /docs is ours
        redoc_url=None,
    )
    _add_errors(app)
    files = FileTokens(tokens)
    add_search(app, searchers, files)
    trusted = hosts is not None or token is not None  # on this machine, or with the token
    add_items(app, searchers, trusted)
    add_captions(app, searchers, trusted)
    add_files(app, searchers, files)
    add_media(app, searchers)
    for path in sorted(path for path in PAGE.iterdir() if path.suffix in KINDS):
        address = f"/{path.name}"
        _add_file(app, SHORT.get(address, address), path.read_bytes(), f"{KINDS[path.suffix]}; charset=utf-8")
    counters = Counters()
    _add_operations(app, searchers, counters)
    known = frozenset(route.path for route in app.routes if isinstance(route, Route))
    return Access(Limits(app, hosts), known, counters, token, log)


def _add_operations(app: FastAPI, searchers: ReloadingSearcher, counters: Counters) -> None:
    @app.get(HEALTH, summary="Whether the service answers")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "index": searchers.current.folder.name})

    @app.get(METRICS, summary="Counters in the text format of Prometheus")
    async def metrics() -> PlainTextResponse:
        items = {name: about["count"] for name, about in searchers.current.meta["modalities"].items()}
        return PlainTextResponse(counters.text(items), media_type="text/plain; version=0.0.4")


def _warm_up(searcher: Searcher) -> None:
    """Load what the first requests would wait for: the text encoder, and the images of the built-in set."""
    if searcher.queries is not None:
        searcher.queries.warm_up()
    warm_up_images(searcher)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError | ValidationError) -> JSONResponse:
        # The input is not repeated: a request of a megabyte must not get an answer of a megabyte.
        found = [
            f"{'.'.join(str(part) for part in problem['loc'] if part not in ('query', 'body')) or 'request'}: "
            f"{problem['msg']}"
            for problem in error.errors()[:5]
        ]
        return JSONResponse({"detail": "; ".join(found)}, status_code=422)

    @app.exception_handler(QueryError)
    async def wrong_query(_: Request, error: QueryError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.exception_handler(ReadError)
    @app.exception_handler(OSError)
    @app.exception_handler(sqlite3.Error)
    async def no_index(_: Request, error: Exception) -> JSONResponse:
        _LOG.error("the index cannot be read: %s", error)
        detail = "the index was damaged or removed while the service ran; rebuild it with crossclr index"
        return JSONResponse({"detail": detail}, status_code=503)

    @app.exception_handler(Exception)
    async def internal_error(_: Request, error: Exception) -> JSONResponse:
        _LOG.error("a request failed: %s: %s", type(error).__name__, error)
        return JSONResponse({"detail": "the service failed to answer; its log says why"}, status_code=500)


def _add_file(app: FastAPI, address: str, content: bytes, kind: str) -> None:
    @app.get(address, include_in_schema=False)
    async def page_file() -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})
