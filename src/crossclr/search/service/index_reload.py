"""A running service picks up changes of the index on disk."""

import asyncio
import gc
import logging

from fastapi.concurrency import run_in_threadpool

from crossclr.allocator import return_freed_memory
from crossclr.search.building.index_files import read_meta
from crossclr.search.index.generations import current_generation
from crossclr.search.searcher import Searcher

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
        if read_meta(folder)["weights"] != self.current.meta["weights"]:
            self._refused = folder.name  # sentences would be encoded by another model than the items
            _LOG.warning("the new index was built from other weights; restart the service to use it")
            return False
        now = self.current
        self.current = Searcher(folder, now.queries, now.no_text, now.files, now.no_files)
        return True


def _free_memory() -> None:
    """Free the previous searcher, whose caches refer to it, and return its memory to the system where glibc can."""
    gc.collect()
    return_freed_memory()
