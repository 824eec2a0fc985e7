"""The service as an ASGI application: its routes, the page, and errors that say what to do."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError
from starlette.routing import Route

from crossclr import __version__
from crossclr.search.query import QueryError
from crossclr.search.searcher import Searcher
from crossclr.search.service.access import HEALTH, METRICS, Access, Counters
from crossclr.search.service.file_routes import FileTokens, ReloadingSearcher, add_files
from crossclr.search.service.limits import Limits
from crossclr.search.service.search_routes import add_media, add_search, warm_up_images

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

    @app.exception_handler(Exception)
    async def internal_error(_: Request, error: Exception) -> JSONResponse:
        _LOG.error("a request failed: %s: %s", type(error).__name__, error)
        return JSONResponse({"detail": "the service failed to answer; its log says why"}, status_code=500)


def _add_file(app: FastAPI, address: str, content: bytes, kind: str) -> None:
    @app.get(address, include_in_schema=False)
    async def page_file() -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})
