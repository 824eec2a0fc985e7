"""A running service picks up changes of the index on disk.

Files as queries over HTTP: a file becomes a short-lived token, and only its vector stays behind the token.
"""

import asyncio
import gc
import logging
import secrets
import sqlite3
import tempfile
import threading
import time
from typing import Any, BinaryIO

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from crossclr.allocator import return_freed_memory
from crossclr.search.index import current_generation, read_meta
from crossclr.search.query import QueryError
from crossclr.search.query_encoders import FileQuery
from crossclr.search.searcher import Searcher
from crossclr.search.service.access import FILE_ADDRESS, FILE_TOO_LARGE, LARGEST_FILE, within

CHECK_SECONDS = 1.0  # between two looks at the disk
_LOG = logging.getLogger("crossclr.search")


class ReloadingSearcher:
    """Holds the searcher of the newest complete index."""

    def __init__(self, searcher: Searcher) -> None:
        self.current = searcher
        self._refused = ""

    async def watch(self) -> None:
        """Open each new generation, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if await run_in_threadpool(self.refresh):
                    await asyncio.sleep(CHECK_SECONDS)  # requests that use the previous index end
                    _free_memory()
            except (OSError, ValueError) as error:  # the previous index continues to answer
                _LOG.warning("cannot open the new index: %s", error)

    def refresh(self) -> bool:
        """Open the newest generation if it is not open yet, and return whether the searcher changed."""
        folder = current_generation(self.current.folder.parent)
        if folder is None or folder.name in (self.current.folder.name, self._refused):
            return False
        now = self.current
        if read_meta(folder)["weights"] == now.meta["weights"]:
            self.current = Searcher(folder, now.queries, now.no_text, now.files, now.no_files)
            return True
        try:
            self.current = Searcher.open(folder.parent.parent)  # the run was fitted again
        except ValueError as error:
            self._refused = folder.name  # sentences would be encoded by another model than the items
            _LOG.warning("the new index is not used: %s", error)
            return False
        return True


def _free_memory() -> None:
    """Free the previous searcher, whose caches refer to it, and return its memory to the system where glibc can."""
    gc.collect()
    return_freed_memory()


TOKEN_SECONDS = 3600.0
MOST_TOKENS = 512
MOST_WAITING = 8  # files that may wait for the networks, which serve one at a time
UPLOAD_SECONDS = 60.0
# A foreign page can send these without asking first, so a file must come as something else.
FORMS = ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded")


class FileTokens:
    """Queries by file under random names, for an hour; the oldest go first.

    Args:
        path: SQLite file that several workers share. Default: in the memory of this process.

    Example:
        >>> tokens = FileTokens()
        >>> tokens.get("nothing")
        Traceback (most recent call last):
        ...
        crossclr.search.query.QueryError: this link has lost its file, which is ...; choose it again
    """

    def __init__(self, path: str = ":memory:") -> None:
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
        columns = "token TEXT PRIMARY KEY, until REAL, vector BLOB, modality TEXT, seconds REAL"
        self._run(f"CREATE TABLE IF NOT EXISTS files ({columns})")

    def put(self, query: FileQuery) -> str:
        """Keep a query and return its token."""
        token, now = secrets.token_urlsafe(12), time.time()
        vector = np.asarray(query.vector, dtype=np.float32).tobytes()
        about = vector, query.modality, query.seconds
        self._run("INSERT INTO files VALUES (?, ?, ?, ?, ?)", token, now + TOKEN_SECONDS, *about)
        kept = "SELECT token FROM files ORDER BY until DESC LIMIT ?"
        self._run(f"DELETE FROM files WHERE until < ? OR token NOT IN ({kept})", now, MOST_TOKENS)  # noqa: S608
        return token

    def get(self, token: str) -> FileQuery:
        """The query of a token.

        Raises:
            QueryError: the token is unknown or too old.
        """
        known = "SELECT vector, modality, seconds FROM files WHERE token = ? AND until > ?"
        for vector, modality, seconds in self._run(known, token, time.time()):
            return FileQuery(np.frombuffer(vector, dtype=np.float32)[None], modality, seconds)
        raise QueryError("this link has lost its file, which is known for an hour; choose it again")

    def _run(self, command: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._base.execute(command, values).fetchall()


def add_files(app: FastAPI, searchers: ReloadingSearcher, tokens: FileTokens) -> None:
    """Add ``/api/file`` to an application."""
    waiting = 0

    @app.post(FILE_ADDRESS, summary="Turn an image, video or sound into a token to search with")
    async def file(request: Request) -> JSONResponse:
        """The body is the file itself."""
        nonlocal waiting
        files = searchers.current.files
        if files is None:
            raise QueryError(searchers.current.no_files)
        if request.headers.get("content-type", "").split(";")[0].strip().lower() in ("", *FORMS):
            raise HTTPException(415, "send the file itself as the body, with its own content type, such as image/jpeg")
        if waiting >= MOST_WAITING:
            raise HTTPException(503, "too many files at once; try again in a few seconds")
        waiting += 1
        try:
            with tempfile.TemporaryFile() as held:  # it has no name, and is gone when it is closed
                await _receive(request, held)
                query = await run_in_threadpool(files.encode, held)
        finally:
            waiting -= 1
        about = {"modality": query.modality, "seconds": round(query.seconds, 2)}
        return JSONResponse({"token": tokens.put(query), **about})


async def _receive(request: Request, held: BinaryIO) -> None:
    async def copy() -> None:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > LARGEST_FILE:
                raise HTTPException(*FILE_TOO_LARGE)
            held.write(part)
        if not size:
            raise QueryError("the file is empty")

    try:
        await within(UPLOAD_SECONDS, copy())
    except TimeoutError:
        raise HTTPException(408, f"sending the file took longer than {UPLOAD_SECONDS:g} s") from None
