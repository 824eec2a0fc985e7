"""The routes: search, one item, what the index contains, the map, and the media of an item."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi import Query as QueryParameters
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from crossclr.data.emoji_set import VENDORS, count_images, emoji_image, is_built_in, read_image
from crossclr.extract.media import MediaError, media_kind, media_type
from crossclr.search.create import write_caption
from crossclr.search.items import Item
from crossclr.search.previews import BusyError, ConvertedClips
from crossclr.search.query import LONGEST_TEXT, MOST, Query, Weights, parse_where
from crossclr.search.results import Thing, group_hits, plain_hit, plain_item
from crossclr.search.searcher import Searcher
from crossclr.search.service.access import LARGEST_FILE
from crossclr.search.service.file_routes import FileTokens, ReloadingSearcher

MOST_RESULTS = 200
HITS_OF_A_THING = 4  # hits to look at for each result, where several items of one thing are one result
MOST_VALUES = 2000  # values of a filter that the page offers; others can be typed

Name = Annotated[str, Field(max_length=500)]
Names = Annotated[list[Name], Field(max_length=50)]
ItemName = Annotated[str, QueryParameters(max_length=500, description="Id of the item.")]


class SearchRequest(BaseModel):
    """The fields of `Query` with the limits of a service; they are explained there."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    text: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = Field(default=None, description="A sentence.")
    text_modality: Name | None = Field(default=None, description="Modality that encodes the sentence.")
    like: Name | None = Field(default=None, description="Id of an item to find neighbours of.")
    file: Annotated[str, Field(max_length=50)] | None = Field(default=None, description="Token of a file (/api/file).")
    more: Names = Field(default=[], description="Ids of items that the results should resemble.")
    less: Names = Field(default=[], description="Ids of items that the results should not resemble.")
    weights: dict[Literal["text", "file", "more", "less"], float] = Field(
        default={}, description="How much each part counts, 0 to 100. Default: text 1, file 1, more 1.25, less 0.25."
    )
    vector: Annotated[list[float], Field(max_length=16384)] | None = Field(
        default=None, description="A vector of the joint space."
    )
    find: Name | None = Field(
        default=None,
        description="Modality of the results; all; fused, or several joined by + for whole samples. Default: not the "
        "query's own.",
    )
    top: int = Field(default=24, ge=1, le=MOST_RESULTS, strict=True, description="Number of results.")
    fold: bool = Field(default=False, description="Whether several items of one thing are one result.")
    splits: Names = Field(default=[], description="Only items of these splits. Default: all.")
    groups: Names = Field(default=[], description="Only items of these groups. Default: all.")
    where: dict[Name, Names] = Field(
        default={}, max_length=20, description="Only items with these values, by filter (/api/info); 10..20 is a range."
    )
    min_probability: float = Field(default=0.0, ge=0, le=1, description="Only results that are this likely right.")

    def query(self, tokens: FileTokens, most: int) -> Query:
        """The query, with up to ``most`` results."""
        values = self.model_dump(exclude={"fold", "file", "weights", "top"})
        file = None if self.file is None else tokens.get(self.file)
        return Query(**values, file=file, weights=Weights(**self.weights), top=most)


class CaptionRequest(BaseModel):
    """A new caption of an item; several lines are several sentences."""

    model_config = ConfigDict(extra="forbid")

    id: Name
    text: Annotated[str, Field(max_length=LONGEST_TEXT)]


class AddressRequest(SearchRequest):
    """The same in an address, for links."""

    text: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = Field(None, alias="q", description="A sentence.")
    weights: Names = Field([], alias="weight", description="How much a part counts, such as text=0.5.")  # type: ignore[assignment]
    top: int = Field(default=24, ge=1, le=MOST_RESULTS, description="Number of results.")
    splits: Names = Field([], alias="split", description="Only these splits.")
    groups: Names = Field([], alias="group", description="Only these groups.")
    where: Names = Field([], description="Only NAME=VALUE of a filter.")  # type: ignore[assignment]

    def request(self) -> SearchRequest:
        """The request with parsed weights and filters."""
        weights = asdict(Weights.parse(self.weights))
        return SearchRequest(**self.model_dump() | {"weights": weights, "where": parse_where(self.where)})


def add_search(app: FastAPI, searchers: ReloadingSearcher, tokens: FileTokens) -> None:
    """Add ``/api/search`` to an application."""

    async def answer(request: SearchRequest) -> JSONResponse:
        searcher = searchers.current  # one state of the index for the whole answer
        query = request.query(tokens, min(MOST, HITS_OF_A_THING * request.top) if request.fold else request.top)
        try:
            if request.text is None and request.find in (None, *searcher.modalities):  # takes a millisecond
                hits = searcher.search(query)
            else:
                hits = await run_in_threadpool(searcher.search, query)
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None
        if request.fold:
            looks = searcher.previews.looks(hit.item for hit in hits)
            return JSONResponse({"results": [_thing(searcher, one) for one in group_hits(hits, request.top, looks)]})
        return JSONResponse({"results": [plain_hit(hit, searcher.base) for hit in hits]})

    @app.post("/api/search", summary="Search by a sentence, an item or a vector")
    async def search(request: SearchRequest) -> JSONResponse:
        return await answer(request)

    @app.get("/api/search", summary="The same with the query in the address, for links")
    async def search_by_address(address: Annotated[AddressRequest, QueryParameters()]) -> JSONResponse:
        return await answer(address.request())


def add_items(app: FastAPI, searchers: ReloadingSearcher, trusted: bool) -> None:
    """Add the routes for items and for what the index contains to an application.

    Args:
        app: the application.
        searchers: the opened index.
        trusted: whether callers may know the folder of the files.
    """

    @app.get("/api/item", summary="One item and what belongs to it")
    def item(id: ItemName) -> JSONResponse:
        searcher = searchers.current
        found = find_item(searcher, id)
        partners = [plain_item(other, searcher.base) for other in searcher.partners(found)]
        return JSONResponse(plain_item(found, searcher.base) | {"partners": partners, "x": found.x, "y": found.y})

    @app.get("/api/sample", summary="Some items, spread evenly over the collection")
    def sample(
        find: Annotated[str | None, QueryParameters(max_length=500, description="Modality of the items.")] = None,
        top: Annotated[int, QueryParameters(ge=1, le=MOST_RESULTS, description="Number of items.")] = 12,
    ) -> JSONResponse:
        searcher = searchers.current
        items = searcher.sample(searcher.modality(find), top)
        return JSONResponse({"results": [plain_item(item, searcher.base) for item in items]})

    @app.get("/api/info", summary="What the index contains")
    def info() -> JSONResponse:
        searcher = searchers.current
        names = ("name", "about", "dim", "text_modality", "text_modalities", "modalities")
        values = {name: searcher.meta[name] for name in names}
        values["filters"] = [
            {**one, "values": one.get("values", [])[:MOST_VALUES]} for one in searcher.meta["filters"] if one["useful"]
        ]
        values |= {"longest_text": LONGEST_TEXT, "largest_file": LARGEST_FILE}
        values |= {"text": searcher.queries is not None, "no_text": searcher.no_text}
        values |= {"folder": searcher.base if trusted else "", "captions": trusted}
        return JSONResponse(values | {"files": searcher.files is not None, "no_files": searcher.no_files})

    @app.get("/api/map", summary="Positions of the items in two dimensions")
    def map_() -> Response:
        return Response(searchers.current.map_file().read_bytes(), media_type="application/json")


def add_captions(app: FastAPI, searchers: ReloadingSearcher, trusted: bool) -> None:
    """Add ``/api/caption`` to an application; only trusted callers may use it."""

    @app.post("/api/caption", summary="Write the caption of an item next to its file")
    def caption(caption: CaptionRequest, request: Request) -> JSONResponse:
        searcher = searchers.current
        if not trusted:
            raise HTTPException(403, "captions change only on this machine, or with the token of the service")
        if request.headers.get("content-type") != "application/json":  # a foreign page may send other types unasked
            raise HTTPException(415, "send JSON with the content type application/json")
        try:
            file = write_caption(searcher.folder.parent.parent, find_item(searcher, caption.id), caption.text)
        except OSError as error:
            raise HTTPException(503, f"the caption cannot be written now: {error}") from None
        searchers.refresh()
        return JSONResponse({"file": file.name})


def find_item(searcher: Searcher, name: str) -> Item:
    """The item with a name, or an answer with status 404."""
    try:
        return searcher.item(name)
    except KeyError:
        raise HTTPException(404, "the index has no such item") from None


def _thing(searcher: Searcher, thing: Thing) -> dict[str, Any]:
    """The best hit of a thing, its other hits and, for moments, the length of the timeline that they lie on."""
    values = {**plain_hit(thing.best, searcher.base), "copies": thing.copies}
    values["others"] = [plain_hit(hit, searcher.base) for hit in thing.others]
    if thing.others and thing.best.item.stop is not None:
        values["length"] = searcher.items.last_second(thing.best.item.file)
    return values


def add_media(app: FastAPI, searchers: ReloadingSearcher) -> None:
    """Add ``/media`` to an application."""
    clips = ConvertedClips(searchers.current.folder.parent.parent)

    @app.get("/media", summary="The image, video or sound of an item")
    def media(
        id: ItemName,
        part: Annotated[int, QueryParameters(ge=0, le=9, description="Which of its images.")] = 0,
        convert: Annotated[
            bool, QueryParameters(description="Whether to convert its clip to MP4, up to 60 s.")
        ] = False,
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
        if media_kind(path) is None or not any(path.is_relative_to(root) for root in roots):
            raise HTTPException(403, "the file of this item is outside the folders that the index names")
        if not path.is_file():
            raise HTTPException(404, "the file of this item no longer exists")
        if convert and item.media != "image":
            return FileResponse(_converted(clips, item), media_type="video/mp4", headers=headers)
        if kind is None:
            raise HTTPException(415, f"browsers do not play {path.suffix} files; request it with convert=true")
        return FileResponse(path, media_type=kind, headers=headers)

    @app.get("/preview", summary="A small image of an item: a frame of its video, or the waveform of its sound")
    def preview(id: ItemName) -> Response:
        searcher = searchers.current
        content = searcher.previews.get(find_item(searcher, id))
        if content is None:
            raise HTTPException(404, "this item has no preview")
        return Response(content, media_type="image/webp", headers={"cache-control": "private, max-age=3600"})


def _converted(clips: ConvertedClips, item: Item) -> Path:
    try:
        return clips.get(item)
    except BusyError as error:
        raise HTTPException(503, str(error)) from None
    except MediaError as error:
        raise HTTPException(415, f"the file cannot be converted: {error}") from None


def warm_up_images(searcher: Searcher) -> None:
    """Load the images of the built-in set, if the index shows them."""
    for item in searcher.items.get([0]):
        if is_built_in(item.file):
            for vendor in VENDORS:
                emoji_image(item.file.rpartition("/")[2], vendor)
