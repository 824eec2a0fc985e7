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
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from crossclr import __version__
from crossclr.search.query_error import QueryError
from crossclr.search.searcher import Searcher
from crossclr.search.service.file_routes import FileTokens, add_files
from crossclr.search.service.index_reload import ReloadingSearcher
from crossclr.search.service.limits import Limits
from crossclr.search.service.search_routes import add_media, add_search, warm_up_images

PAGE = Path(__file__).with_name("page")
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/elements.js": ("elements.js", "text/javascript; charset=utf-8"),
    "/item.js": ("item.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/map.js": ("map.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
_LOG = logging.getLogger("crossclr.search")


def create_app(
    searcher: Searcher, hosts: Sequence[str] | None = None, started: Callable[[], None] | None = None
) -> Any:
    """The service for an opened index, as an ASGI application; ``hosts`` are the Host headers to answer (None: any)."""
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
        description="Search across two modalities, such as text and video.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from other sites; /docs is ours
        redoc_url=None,
    )
    _add_errors(app)
    tokens = FileTokens()
    add_search(app, searchers, tokens)
    add_files(app, searchers, tokens)
    add_media(app, searchers)
    for address, (name, kind) in PAGE_FILES.items():
        _add_file(app, address, (PAGE / name).read_bytes(), kind)
    return Limits(app, hosts)


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
