"""Build the built-in emoji set: pictures of three vendors, English names and tags, and precomputed features.

    pip install 'crossclr[experts]' resvg_py==0.5.0
    python tools/build_emoji.py [--out src/crossclr/data/emoji] [--sheets FOLDER]

It needs npm for the drawings and names, which it installs into a temporary folder by the exact versions below. It takes
some five minutes on two cores, most of it for the picture features.

What is chosen and changed:
- the emoji that all three vendors draw, without skin tones and without Unicode's "component" group;
- each SVG is drawn at 64 pixels on a transparent background (not square ones are centred);
- the shipped pictures have at most 48 colours, which makes them a third smaller; they are stored as lossless WebP;
- the sentence of an emoji is "name: tag, tag, ..."; a tag whose words are all in the name is left out;
- picture features come from the 64-pixel pictures before their colours are reduced;
- the main colour of an emoji is the word for half or more of the pixels of its three drawings (tools/colours.py);
- features are kept as 8-bit steps of an eighth of each row's root mean square (cosine with the exact row > 0.999).
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import random
import re
import subprocess
import tempfile
import zipfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from colours import main_colour
from PIL import Image

from crossclr.data.emoji_set import QUERIES
from crossclr.extract import ImageEncoder, TokenEncoder

PACKAGES = {"@iconify/json": "2.2.535", "emojibase-data": "17.0.0"}
COLLECTIONS = {"noto": "noto", "fluent": "fluent-emoji-flat", "twemoji": "twemoji"}
SIZE = 64
COLOURS = 48  # of a shipped picture
VIDEO_LENGTH = 8  # emoji, about; as many as a cooking video of YouCook2 has clips on average
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
SEED = 0
COMPONENTS = 2  # Unicode's group of skin tones and hair styles: parts of emoji, not emoji
STEPS_PER_RMS = 8
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the same bytes on every build

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the built-in emoji set.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "src/crossclr/data/emoji")
    parser.add_argument("--sheets", type=Path, help="also write a contact sheet of each vendor here, to look at")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        modules = install(Path(folder))
        icons = {vendor: read_icons(modules, name) for vendor, name in COLLECTIONS.items()}
        items = assign_videos(choose(modules, icons))
    for item in items:
        item["text"] = sentence(item["name"], item["tags"])
    drawn = {vendor: [draw(drawings[plain(item["key"])]) for item in items] for vendor, drawings in icons.items()}
    for index, item in enumerate(items):
        item["colour"] = main_colour([pictures[index] for pictures in drawn.values()])
    write_items(arguments.out / "emoji.json", items)
    rows = TokenEncoder()([item["text"] for item in items])
    save_rows(arguments.out / "text.npz", np.concatenate(rows), lengths=np.array([len(row) for row in rows]))
    rows = TokenEncoder()(QUERIES)
    save_rows(arguments.out / "queries.npz", np.concatenate(rows), lengths=np.array([len(row) for row in rows]))
    encoder = ImageEncoder()
    for vendor, pictures in drawn.items():
        write_pictures(arguments.out / f"{vendor}.zip", [item["key"] for item in items], pictures)
        if arguments.sheets:
            write_sheet(arguments.sheets / f"{vendor}.png", pictures)
        save_rows(arguments.out / f"{vendor}.npz", encoder(pictures))
        print(f"{vendor}: {len(pictures)} pictures")
    total = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{len(items)} emoji, {total / 1e6:.1f} MB in {arguments.out}")


def install(folder: Path) -> Path:
    """Fetch the npm packages; returns their node_modules folder."""
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True)
    return folder / "node_modules"


def plain(hexcode: str) -> str:
    """Vendors disagree on the variation selector FE0F, so hexcodes are compared without it."""
    return "-".join(code for code in hexcode.lower().split("-") if code != "fe0f")


def read_icons(modules: Path, collection: str) -> dict[str, str]:
    """Plain hexcode -> SVG of one vendor."""
    content = json.loads((modules / "@iconify/json/json" / f"{collection}.json").read_text(encoding="utf-8"))
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    drawings = {}
    for hexcode, name in content["chars"].items():
        if name not in content["icons"]:  # an alias
            continue
        icon = {"left": 0, "top": 0, "width": content["width"], "height": content["height"], **content["icons"][name]}
        width, height = icon["width"], icon["height"]
        box = f"{icon['left']} {icon['top']} {width} {height}"
        svg = f'<svg {spaces} width="{width}" height="{height}" viewBox="{box}">{icon["body"]}</svg>'
        drawings[plain(hexcode)] = svg
    return drawings


def choose(modules: Path, icons: dict[str, dict[str, str]]) -> list[Json]:
    """Emoji that every vendor has, in Unicode's order."""
    names = json.loads((modules / "emojibase-data/meta/groups.json").read_text(encoding="utf-8"))
    entries = json.loads((modules / "emojibase-data/en/data.json").read_text(encoding="utf-8"))
    chosen = [
        {
            "key": entry["hexcode"],
            "character": entry["emoji"],
            "name": entry["label"],
            "tags": entry.get("tags", []),
            "group": names["groups"][str(entry["group"])],
            "subgroup": names["subgroups"][str(entry["subgroup"])],
            "order": entry["order"],
        }
        for entry in entries
        if entry.get("group", COMPONENTS) != COMPONENTS
        and all(plain(entry["hexcode"]) in drawings for drawings in icons.values())
    ]
    return sorted(chosen, key=lambda item: int(item["order"]))


def family(key: str) -> str:
    """The same for an emoji as a person, a man and a woman, and for one that faces the other way."""
    codes = key.replace("-FE0F", "")
    for ending in ("-200D-27A1", "-200D-2640", "-200D-2642"):  # facing right, woman, man
        codes = codes.removesuffix(ending)
    return re.sub("^1F46[89]-200D", "1F9D1-200D", codes)  # a man or woman with something: a person with it


def assign_videos(items: list[Json]) -> list[Json]:
    """Cut each subgroup into runs of nearly equal length (the "videos"), and deal whole runs out to the splits.

    Runs are dealt within each Unicode group, so that every split sees every kind of thing. A cut never divides a family
    (cook, man cook, woman cook), so that no split holds near copies of what is in another.
    """
    for subgroup, members in groupby(items, key=lambda item: str(item["subgroup"])):
        emoji = list(members)
        families = [family(item["key"]) for item in emoji]
        cuts = [cut for cut in range(1, len(emoji)) if not set(families[:cut]) & set(families[cut:])]
        runs = -(-len(emoji) // VIDEO_LENGTH)
        ideal = [run * len(emoji) / runs for run in range(1, runs)]
        chosen = {min(cuts, key=lambda cut: abs(cut - place)) for place in ideal} if cuts else set()
        for index, item in enumerate(emoji):
            item["video"] = f"{subgroup}-{sum(cut <= index for cut in chosen) + 1:02d}"
    generator = random.Random(SEED)
    for _, members in groupby(items, key=lambda item: str(item["group"])):
        videos = [list(run) for _, run in groupby(members, key=lambda item: str(item["video"]))]
        total = sum(map(len, videos))
        dealt = dict.fromkeys(SHARES, 0)
        for run in generator.sample(videos, len(videos)):
            split = max(SHARES, key=lambda name: SHARES[name] * total - dealt[name])
            dealt[split] += len(run)
            for item in run:
                item["split"] = split
    return items


def sentence(name: str, tags: list[str]) -> str:
    """What the text modality says of an emoji."""
    said = set(re.findall(r"\w+", name.lower()))
    new = [tag for tag in tags if not set(re.findall(r"\w+", tag.lower())) <= said or not re.search(r"\w", tag)]
    return f"{name}: {', '.join(new)}" if new else name


def draw(svg: str) -> Image.Image:
    """The picture of an SVG, centred on a transparent square."""
    resvg = importlib.import_module("resvg_py")
    png = resvg.svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE, skip_system_fonts=True)
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    square = Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 0))
    square.paste(picture, ((SIZE - picture.width) // 2, (SIZE - picture.height) // 2))
    return square


def write_pictures(path: Path, keys: list[str], pictures: list[Image.Image]) -> None:
    """An uncompressed archive of <key>.webp, with fewer colours."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, picture in zip(keys, pictures, strict=True):
            content = io.BytesIO()
            fewer = picture.quantize(COLOURS, method=Image.Quantize.FASTOCTREE).convert("RGBA")
            fewer.save(content, format="WEBP", lossless=True, quality=100, method=6)
            archive.writestr(zipfile.ZipInfo(f"{key}.webp", ZIP_DATE), content.getvalue())


def write_sheet(path: Path, pictures: list[Image.Image], columns: int = 40) -> None:
    """All pictures on white, to see that none is broken."""
    sheet = Image.new("RGB", (columns * SIZE, -(-len(pictures) // columns) * SIZE), "white")
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % columns * SIZE, index // columns * SIZE), picture)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def save_rows(path: Path, rows: npt.NDArray[np.float32], **others: npt.NDArray[np.int64]) -> None:
    """8-bit steps, column by column (which compresses better), and the size of a step for each row."""
    steps = (np.sqrt((rows**2).mean(1)) / STEPS_PER_RMS).astype(np.float32)  # (rows,)
    kind = np.dtype(np.uint8 if rows.min() >= 0 else np.int8)
    limits = np.iinfo(kind)
    counts = np.clip(np.rint(rows / steps[:, None]), limits.min, limits.max).astype(kind, order="F")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in {"counts": counts, "steps": steps, **others}.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", ZIP_DATE)
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def write_items(path: Path, items: list[Json]) -> None:
    """One emoji a line, so that a change of versions can be read as a difference."""
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    path.write_text(f'{{"packages": {json.dumps(PACKAGES)}, "items": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
