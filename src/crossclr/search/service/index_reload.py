"""The index that a running service answers from: changes of the index on disk are taken over while it runs."""

from __future__ import annotations

import asyncio
import json
import logging

from fastapi.concurrency import run_in_threadpool

from crossclr.search.building.create import META
from crossclr.search.index.generations import current_generation
from crossclr.search.searcher import Searcher

LOOK_EVERY = 1.0  # seconds between two looks at the disk
GRACE = 30.0  # seconds that requests under way may still use the index of before
_LOG = logging.getLogger("crossclr.search")


class Live:
    """Holds the searcher of the last complete state of an index.

    Args:
        searcher: the opened index.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.now = searcher
        self._refused = ""

    async def watch(self) -> None:
        """Take over each new generation, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                before = self.now
                if await run_in_threadpool(self.refresh):
                    asyncio.get_running_loop().call_later(GRACE, before.close)
            except (OSError, ValueError) as error:  # half-removed, or not ours: the index of before goes on answering
                _LOG.warning("the index on disk cannot be taken over: %s", error)

    def refresh(self) -> bool:
        """Open the last complete generation where it is another one; True if the searcher changed."""
        folder = current_generation(self.now.folder.parent)
        if folder is None or folder.name in (self.now.folder.name, self._refused):
            return False
        weights = json.loads((folder / META).read_text(encoding="utf-8"))["weights"]
        if weights != self.now.meta["weights"]:
            self._refused = folder.name  # sentences would be encoded by another model than the items
            _LOG.warning("the index on disk was built from other weights; start the service anew to use it")
            return False
        self.now = Searcher(folder, self.now.queries, self.now.no_text)
        return True
