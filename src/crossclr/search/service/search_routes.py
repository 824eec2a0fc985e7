"""The routes: search, one item, what the index contains, the map, and the media of an item."""

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from crossclr.data.emoji_set import VENDORS, count_images, emoji_image, is_built_in, read_image
from crossclr.extract.media import MediaError, media_kind, media_type
from crossclr.search.items import Item
from crossclr.search.previews import BusyError, ConvertedClips
from crossclr.search.query import Weights, parse_where
from crossclr.search.results import Hit, Thing, group_hits, plain_item, plain_together
from crossclr.search.searcher import LONGEST_TEXT, MOST, Searcher
from crossclr.search.service.access import LARGEST_FILE
from crossclr.search.service.file_routes import FileTokens, ReloadingSearcher

MOST_RESULTS = 200
HITS_OF_A_THING = 4  # hits to look at for each result, where several items of one thing are one result
MOST_VALUES = 2000  # values of a filter that the page offers; others can be typed

Name = Annotated[str, Field(max_length=500)]
Names = Annotated[list[Name], Field(max_length=50)]


class SearchRequest(BaseModel):
    """One query: a sentence, a file and items in any combination, or a vector."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = Field(default=None, description="A sentence.")
    text_modality: Name | None = Field(
        default=None,
        description="Modality that encodes the sentence. Default: the one named text, or the first of text.",
    )
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


def add_search(app: FastAPI, searchers: ReloadingSearcher, tokens: FileTokens) -> None:
    """Add ``/api/...`` to an application."""

    async def answer(request: SearchRequest) -> JSONResponse:
        searcher = searchers.current  # one state of the index for the whole answer
        query = request.model_dump()
        query["file"] = None if request.file is None else tokens.get(request.file)
        query["weights"] = Weights(**query["weights"])
        if query.pop("fold"):
            query["top"] = min(MOST, HITS_OF_A_THING * request.top)
        try:
            if request.text is None and request.find in (None, *searcher.modalities):  # takes a millisecond
                hits = searcher.search(**query)
            else:
                hits = await run_in_threadpool(searcher.search, **query)
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None
        results = [_result(hit) for hit in hits]
        if request.fold:
            results = [_thing(searcher, one) for one in group_hits(hits, request.top)]
        return JSONResponse({"results": results})

    @app.post("/api/search", summary="Search by a sentence, an item or a vector")
    async def search(request: SearchRequest) -> JSONResponse:
        return await answer(request)

    @app.get("/api/search", summary="The same with the query in the address, for links")
    async def search_by_address(
        q: Annotated[str | None, Query(max_length=LONGEST_TEXT, description="A sentence.")] = None,
        text_modality: Annotated[str | None, Query(max_length=500, description="Encodes the sentence.")] = None,
        like: Annotated[str | None, Query(max_length=500, description="Id of an item.")] = None,
        file: Annotated[str | None, Query(max_length=50, description="Token of a file (/api/file).")] = None,
        more: Annotated[list[str], Query(max_length=50, description="Ids of items to find more of.")] = [],  # noqa: B006
        less: Annotated[list[str], Query(max_length=50, description="Ids of items to find less of.")] = [],  # noqa: B006
        share: Annotated[float, Query(ge=0, le=1, description="Weight of the file next to the sentence.")] = 0.5,
        find: Annotated[str | None, Query(max_length=500, description="Modality of the results.")] = None,
        top: Annotated[int, Query(ge=1, le=MOST_RESULTS, description="Number of results.")] = 24,
        fold: Annotated[bool, Query(description="Whether several items of one thing are one result.")] = False,
        split: Annotated[list[str], Query(max_length=50, description="Only these splits.")] = [],  # noqa: B006
        group: Annotated[list[str], Query(max_length=50, description="Only these groups.")] = [],  # noqa: B006
        where: Annotated[list[str], Query(max_length=50, description="Only NAME=VALUE of a filter.")] = [],  # noqa: B006
    ) -> JSONResponse:
        weights = {"text": 2 * (1 - share), "file": 2 * share} if q is not None and file is not None else {}
        parts: dict[str, Any] = {"text": q, "like": like, "file": file, "more": more, "less": less, "weights": weights}
        parts["text_modality"] = text_modality
        parts |= {"splits": split, "groups": group, "where": parse_where(where)}
        return await answer(SearchRequest(**parts, find=find, top=top, fold=fold))

    @app.get("/api/item", summary="One item and what belongs to it")
    def item(id: Annotated[str, Query(max_length=500, description="Id of the item.")]) -> JSONResponse:
        searcher = searchers.current
        found = find_item(searcher, id)
        numbers = {
            "connectivity": round(found.connectivity, 4),
            "influence": round(searcher.items.influence(found), 4),
            "x": found.x,
            "y": found.y,
        }
        partners = [plain_item(other) for other in searcher.partners(found)]
        return JSONResponse(plain_item(found) | {"partners": partners, **numbers})

    @app.get("/api/sample", summary="Some items, spread evenly over the collection")
    def sample(
        find: Annotated[str | None, Query(max_length=500, description="Modality of the items.")] = None,
        top: Annotated[int, Query(ge=1, le=MOST_RESULTS, description="Number of items.")] = 12,
    ) -> JSONResponse:
        searcher = searchers.current
        items = searcher.sample(searcher.modality(find), top)
        return JSONResponse({"results": [plain_item(item) for item in items]})

    @app.get("/api/info", summary="What the index contains")
    def info() -> JSONResponse:
        searcher = searchers.current
        names = ("name", "about", "dim", "text_modality", "text_modalities")
        values = {name: searcher.meta[name] for name in names}
        about = searcher.meta["modalities"].items()
        values["modalities"] = {name: {key: own[key] for key in own if key != "inputs"} for name, own in about}
        values["filters"] = [
            {**one, "values": one.get("values", [])[:MOST_VALUES]} for one in searcher.meta["filters"] if one["useful"]
        ]
        values |= {"longest_text": LONGEST_TEXT, "largest_file": LARGEST_FILE}
        values |= {"text": searcher.queries is not None, "no_text": searcher.no_text}
        return JSONResponse(values | {"files": searcher.files is not None, "no_files": searcher.no_files})

    @app.get("/api/map", summary="Positions of the items in two dimensions")
    def map_() -> Response:
        return Response(searchers.current.map_file().read_bytes(), media_type="application/json")


def find_item(searcher: Searcher, name: str) -> Item:
    """The item with a name, or an answer with status 404."""
    try:
        return searcher.item(name)
    except KeyError:
        raise HTTPException(404, "the index has no such item") from None


def _result(hit: Hit) -> dict[str, Any]:
    chance = None if hit.probability is None else round(hit.probability, 3)
    return {"score": round(hit.score, 5), "probability": chance, **plain_item(hit.item), **plain_together(hit)}


def _thing(searcher: Searcher, thing: Thing) -> dict[str, Any]:
    """The best hit of a thing, its other hits and, for moments, the length of the timeline that they lie on."""
    values = {**_result(thing.best), "others": [_result(hit) for hit in thing.others]}
    if thing.others and thing.best.item.stop is not None:
        values["length"] = searcher.items.last_second(thing.best.item.file)
    return values


def add_media(app: FastAPI, searchers: ReloadingSearcher) -> None:
    """Add ``/media`` to an application."""
    clips = ConvertedClips(searchers.current.folder.parent.parent)

    @app.get("/media", summary="The image, video or sound of an item")
    def media(
        id: Annotated[str, Query(max_length=500, description="Id of the item.")],
        part: Annotated[int, Query(ge=0, le=9, description="Which of its images.")] = 0,
        convert: Annotated[bool, Query(description="Whether to convert its clip to MP4, at most 60 s of it.")] = False,
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
            try:
                return FileResponse(clips.get(item), media_type="video/mp4", headers=headers)
            except BusyError as error:
                raise HTTPException(503, str(error)) from None
            except MediaError as error:
                raise HTTPException(415, f"the file cannot be converted: {error}") from None
        if kind is None:
            raise HTTPException(415, f"browsers do not play {path.suffix} files; request it with convert=true")
        return FileResponse(path, media_type=kind, headers=headers)

    @app.get("/preview", summary="A small image of an item: a frame of its video, or the waveform of its sound")
    def preview(id: Annotated[str, Query(max_length=500, description="Id of the item.")]) -> Response:
        searcher = searchers.current
        content = searcher.previews.get(find_item(searcher, id))
        if content is None:
            raise HTTPException(404, "this item has no preview")
        return Response(content, media_type="image/webp", headers={"cache-control": "private, max-age=3600"})


def warm_up_images(searcher: Searcher) -> None:
    """Load the images of the built-in set, if the index shows them."""
    for item in searcher.items.get([0]):
        if is_built_in(item.file):
            for vendor in VENDORS:
                emoji_image(item.file.rpartition("/")[2], vendor)
