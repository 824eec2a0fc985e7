"""`crossclr serve`: the search of a run over HTTP, and the page that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import faiss
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crossclr import __version__
from crossclr.experts.media.file_types import media_type
from crossclr.features.emoji.catalogue import VENDORS
from crossclr.search.encoders.text_queries import QueryError
from crossclr.search.items.media_files import BUILT_IN, count_parts, read_built_in
from crossclr.search.searcher import Hit, Searcher
from crossclr.search.service.answers import plain_item
from crossclr.search.service.index_reload import Live
from crossclr.search.service.limits import Limits, PatientProtocol
from crossclr.training import Run

PAGE = Path(__file__).with_name("page")
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/map.js": ("map.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
MOST, LONGEST_TEXT, CONNECTIONS = 200, 1000, 256
LISTED = 2000  # groups that the page offers; others can be typed
_LOG = logging.getLogger("crossclr.search")

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Name = Annotated[str, Field(max_length=500)]
Names = Annotated[list[Name], Field(max_length=50)]


class SearchRequest(BaseModel):
    """One query: exactly one of ``text``, ``like`` and ``vector``."""

    model_config = ConfigDict(extra="forbid")

    text: Text | None = Field(default=None, description="A sentence.")
    like: Name | None = Field(default=None, description="Id of an item whose neighbours are wanted.")
    vector: Annotated[list[float], Field(max_length=16384)] | None = Field(
        default=None, description="A vector of the joint space."
    )
    find: Annotated[str, Field(pattern="^[ab]$")] | None = Field(
        default=None, description="Modality of the results, a or b; left out, the one that the query is not of."
    )
    top: int = Field(default=24, ge=1, le=MOST, strict=True, description="How many results.")
    splits: Names = Field(default=[], description="Only items of these splits; empty: of all.")
    groups: Names = Field(default=[], description="Only items of these groups; empty: of all.")


def create_app(
    searcher: Searcher, hosts: Sequence[str] | None = None, started: Callable[[], None] | None = None
) -> Any:
    """The service over an opened index, as an ASGI application.

    Args:
        searcher: the opened index.
        hosts: Host headers that are answered; None: any.
        started: called when the service is about to answer.
    """
    live = Live(searcher)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_warm_up, searcher)
        watching = asyncio.create_task(live.watch())
        if started is not None:
            started()
        yield
        watching.cancel()

    app = FastAPI(
        title=f"crossclr: {searcher.meta['name']}",
        description="Search in a joint embedding space of two modalities.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # the usual page of FastAPI loads scripts from elsewhere; /docs here is our own
        redoc_url=None,
    )
    _add_errors(app)
    _add_search(app, live)
    _add_media(app, live)
    for address, (name, kind) in PAGE_FILES.items():
        _add_file(app, address, (PAGE / name).read_bytes(), kind)
    return Limits(app, hosts)


def serve_run(
    run: Run | str | Path, *, host: str = "127.0.0.1", port: int = 8000, ready: Callable[[str], None] | None = None
) -> None:
    """Serve a run until the process is told to end.

    Args:
        run: a run that has an index, or its folder.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        ready: called with the address when the service answers.

    Raises:
        OSError: the port is taken.
    """
    server, listening = make_server(Searcher.open(run), host, port, ready)
    server.run(sockets=[listening])


def make_server(
    searcher: Searcher, host: str = "127.0.0.1", port: int = 8000, ready: Callable[[str], None] | None = None
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that listens already but does not answer yet; ``server.run(sockets=[...])`` makes it answer."""
    faiss.omp_set_num_threads(1)  # a single query gains nothing from more, and requests run side by side
    listening = _listen(host, port)
    address = f"http://{_in_address(host)}:{listening.getsockname()[1]}/"

    def started() -> None:
        if ready is not None:
            ready(address)

    config = uvicorn.Config(
        create_app(searcher, _hosts(host), started),
        http=PatientProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config), listening


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError | ValidationError) -> JSONResponse:
        # Without the input itself: a megabyte of nonsense must not come back as a megabyte.
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
    async def fault(_: Request, error: Exception) -> JSONResponse:
        _LOG.error("a request failed: %s: %s", type(error).__name__, error)
        return JSONResponse({"detail": "the service failed to answer this; its log says why"}, status_code=500)


def _add_search(app: FastAPI, live: Live) -> None:
    async def answer(request: SearchRequest) -> JSONResponse:
        searcher = live.now  # one state of the index for the whole answer
        try:
            if request.text is None:  # a millisecond: quicker than handing it to a thread
                hits = _run(searcher, request)
            else:
                hits = await run_in_threadpool(_run, searcher, request)
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None
        return JSONResponse({"results": [_result(searcher, hit) for hit in hits]})

    @app.post("/api/search", summary="Search by a sentence, by an item or by a vector")
    async def search(request: SearchRequest) -> JSONResponse:
        return await answer(request)

    @app.get("/api/search", summary="The same by address, for links")
    async def search_by_address(
        q: Annotated[str | None, Query(max_length=LONGEST_TEXT, description="A sentence.")] = None,
        like: Annotated[str | None, Query(max_length=500, description="Id of an item.")] = None,
        find: Annotated[str | None, Query(pattern="^[ab]$", description="Modality of the results.")] = None,
        top: Annotated[int, Query(ge=1, le=MOST, description="How many results.")] = 24,
        split: Annotated[list[str], Query(max_length=50, description="Only these splits.")] = [],  # noqa: B006
        group: Annotated[list[str], Query(max_length=50, description="Only these groups.")] = [],  # noqa: B006
    ) -> JSONResponse:
        return await answer(SearchRequest(text=q, like=like, find=find, top=top, splits=split, groups=group))

    @app.get("/api/item", summary="One item, what belongs to it, and what makes it special")
    def item(id: Annotated[str, Query(max_length=500, description="Id of the item.")]) -> JSONResponse:
        searcher = live.now
        found = _find(searcher, id)
        partners = [plain_item(other) for other in searcher.partners(found)]
        numbers = {
            "hub": found.hub,
            "connectivity": round(found.connectivity, 4),
            "influence": round(found.influence, 4),
            "x": found.x,
            "y": found.y,
        }
        return JSONResponse({**plain_item(found), "why": searcher.why(found), "partners": partners, **numbers})

    @app.get("/api/info", summary="What the index holds")
    def info() -> JSONResponse:
        searcher = live.now
        names = ("name", "about", "dim", "text_side", "splits", "groups", "hubness", "modalities")
        values = {name: searcher.meta[name] for name in names}
        values["all_groups"] = len(values["groups"]) <= LISTED
        values["groups"] = values["groups"][:LISTED]
        return JSONResponse({**values, "text": searcher.queries is not None, "no_text": searcher.no_text})

    @app.get("/api/map", summary="Places of items in two dimensions")
    def map_() -> FileResponse:
        return FileResponse(live.now.map_file(), media_type="application/json")


def _add_media(app: FastAPI, live: Live) -> None:
    @app.get("/media", summary="The picture, video or sound of an item")
    def media(
        id: Annotated[str, Query(max_length=500, description="Id of the item.")],
        part: Annotated[int, Query(ge=0, le=9, description="Which of its pictures.")] = 0,
    ) -> Response:
        searcher = live.now
        item = _find(searcher, id)
        if not item.media or part >= count_parts(item.file):
            raise HTTPException(404, "this item has no such picture, video or sound")
        headers = {"cache-control": "private, max-age=3600"}
        if item.file.startswith(BUILT_IN):
            return Response(read_built_in(item.file, part), media_type="image/webp", headers=headers)
        roots = [Path(root).resolve() for root in searcher.meta["media_roots"]]
        path = Path(item.file).resolve()  # links are followed before the folder is looked at
        kind = media_type(path)
        if kind is None or not any(path.is_relative_to(root) for root in roots):
            raise HTTPException(403, "the file of this item lies outside the folders that the index names")
        if not path.is_file():
            raise HTTPException(404, "the file of this item is not there any more")
        return FileResponse(path, media_type=kind, headers=headers)


def _add_file(app: FastAPI, address: str, content: bytes, kind: str) -> None:
    @app.get(address, include_in_schema=False)
    async def page_file() -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})


def _warm_up(searcher: Searcher) -> None:
    """Load what the first requests would wait for: the text expert, and the archives of drawings."""
    if searcher.queries is not None:
        searcher.queries.warm_up()
    for item in searcher.items.get([0]):
        if item.file.startswith(BUILT_IN):
            for vendor in VENDORS:
                read_built_in(f"{BUILT_IN}{vendor}/{item.file.rpartition('/')[2]}")


def _run(searcher: Searcher, request: SearchRequest) -> list[Hit]:
    return searcher.search(
        text=request.text,
        like=request.like,
        vector=request.vector,
        find=request.find,
        top=request.top,
        splits=request.splits,
        groups=request.groups,
    )


def _result(searcher: Searcher, hit: Hit) -> dict[str, Any]:
    return {"score": round(hit.score, 4), **plain_item(hit.item), "why": searcher.why(hit.item)}


def _find(searcher: Searcher, name: str) -> Any:
    try:
        return searcher.item(name)
    except KeyError:
        raise HTTPException(404, "the index has no such item") from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off; else answers wait 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(CONNECTIONS)  # now, so that who calls before the service is ready waits and is not refused
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}; choose another with --port") from error
    return listening


def _hosts(host: str) -> list[str] | None:
    """Names under which a service on the loopback address is called; None for one that is open to others."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", _in_address(host)] if local else None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
