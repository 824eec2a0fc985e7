"""The route that serves the image, video or sound of an item, only from folders that the index names."""

from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import FileResponse, Response

from crossclr.experts.media.file_types import media_type
from crossclr.features.sources.emoji import VENDORS, count_images, emoji_image, is_built_in, read_image
from crossclr.search.searcher import Searcher
from crossclr.search.service.index_reload import ReloadingSearcher
from crossclr.search.service.search_routes import find_item


def add_media(app: FastAPI, searchers: ReloadingSearcher) -> None:
    """Add ``/media`` to an application."""

    @app.get("/media", summary="The image, video or sound of an item")
    def media(
        id: Annotated[str, Query(max_length=500, description="Id of the item.")],
        part: Annotated[int, Query(ge=0, le=9, description="Which of its images.")] = 0,
    ) -> Response:
        searcher = searchers.current
        item = find_item(searcher, id)
        if not item.media or part >= count_images(item.file):
            raise HTTPException(404, "this item has no such image, video or sound")
        headers = {"cache-control": "private, max-age=3600"}
        if is_built_in(item.file):
            return Response(read_image(item.file, part), media_type="image/webp", headers=headers)
        roots = [Path(root).resolve() for root in searcher.meta["media_roots"]]
        path = Path(item.file).resolve()  # follows links before the folder is checked
        kind = media_type(path)
        if kind is None or not any(path.is_relative_to(root) for root in roots):
            raise HTTPException(403, "the file of this item is outside the folders that the index names")
        if not path.is_file():
            raise HTTPException(404, "the file of this item no longer exists")
        return FileResponse(path, media_type=kind, headers=headers)


def warm_up_images(searcher: Searcher) -> None:
    """Load the images of the built-in set, if the index shows them."""
    for item in searcher.items.get([0]):
        if is_built_in(item.file):
            for vendor in VENDORS:
                emoji_image(item.file.rpartition("/")[2], vendor)
