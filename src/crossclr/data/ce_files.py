"""Feature files of Collaborative Experts (pickles) and of MMT (HDF5), written once more as plain arrays.

A pickle can run any code when it is read. These are read by an unpickler that knows numbers, strings, lists, tuples,
dicts and the arrays of NumPy, which it builds itself; everything else is an error, and nothing of the file is called.
"""

import io
import json
import math
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from crossclr.data.entries import open_hdf5
from crossclr.data.sample import Rows
from crossclr.errors import DataError
from crossclr.storage import new_folder, write_json
from crossclr.storage.reading import check_regular, reading

MOST_SENTENCES = 20_000_000
ADVICE = "only numbers, strings, lists, tuples, dicts and NumPy arrays are read from a pickle"
EXPERTS = {
    "audio": "audio|vggish",
    "face": "face",
    "flow": "i3d|flow",
    "rgb": "senet|resnet|resnext|rgb|imagenet",
    "scene": "scene|densenet",
    "speech": "stt|speech",
    "ocr": "ocr|all_text",
}
"""The name of an expert by what its file is called."""


class _Type:
    """What a pickle says about the type of an array: kind, size and byte order."""

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or re.fullmatch(r"[fiub][1248]|[SU]\d{1,6}", name) is None:
            raise pickle.UnpicklingError(f"arrays of type {str(name)[:40]!r} are not read")
        self.name, self.order = name, "<"

    def set_state(self, state: Any) -> None:
        """The byte order; the rest follows from the name."""
        self.order = state[1] if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|") else "<"

    def array(self, raw: Any, shape: Any, by_column: bool = False) -> npt.NDArray[Any]:
        """The array with these bytes."""
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        whole = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not isinstance(raw, bytes | bytearray) or not whole or len(shape) > 8:
            raise pickle.UnpicklingError("an array without bytes or shape")
        dtype = np.dtype(("" if self.order == "|" else self.order) + self.name)
        if math.prod(shape) * dtype.itemsize != len(raw) or not dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} and type {self.name} has {len(raw):,} bytes")
        return np.frombuffer(raw, dtype).reshape(shape, order="F" if by_column else "C")


class _Array:
    """An array whose state follows."""

    values: npt.NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        """Version, shape, type, whether columns come first, bytes."""
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], _Type):
            raise pickle.UnpicklingError("an array with another state than NumPy's")
        self.values = state[2].array(state[4], state[1], bool(state[3]))


def _built(values: npt.NDArray[Any]) -> _Array:
    array = _Array()
    array.values = values
    return array


def _scalar(kind: Any, raw: Any = b"") -> Any:
    return _of(kind).array(raw, ()).item()


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any = "C") -> _Array:
    return _built(_of(kind).array(raw, shape, order == "F"))


def _of(kind: Any) -> _Type:
    if not isinstance(kind, _Type):
        raise pickle.UnpicklingError("an array without a type")
    return kind


def _encode(text: Any, encoding: Any = "") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("text in another form than Python's own pickles have")
    return text.encode("latin1")


_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): "ndarray",
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): lambda: {},
    **{(module, "_reconstruct"): lambda *_: _Array() for module in _MODULES},
    **{(module, "scalar"): _scalar for module in _MODULES},
    **{(module, "_frombuffer"): _from_buffer for module in _MODULES},
}
_FORBIDDEN = (
    *("PERSID", "BINPERSID", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"),
    *("EMPTY_SET", "ADDITEMS", "FROZENSET", "NEXT_BUFFER", "READONLY_BUFFER"),
)


class _Unpickler(pickle._Unpickler):  # in Python: its memo cannot be made huge
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    append: Any
    read: Any
    pop_mark: Any

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that are known; nothing is imported."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}")
        return _KNOWN[module, name]

    def refuse(self) -> NoReturn:
        """An operation that features never need."""
        raise pickle.UnpicklingError("it has an object of another kind")

    def load_reduce(self) -> None:
        """Call one of our own functions."""
        arguments = self.stack.pop()
        function = next((known for known in _KNOWN.values() if known is self.stack[-1] and callable(known)), None)
        if function is None or not isinstance(arguments, tuple):
            self.refuse()
        self.stack[-1] = function(*arguments)

    def load_build(self) -> None:
        """Set the state of an array or of its type."""
        state, built = self.stack.pop(), self.stack[-1]
        if not isinstance(built, _Array | _Type):
            self.refuse()
        built.set_state(state)

    def load_setitem(self) -> None:
        """One entry of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self.fill([key, value])

    def load_setitems(self) -> None:
        """Several entries of a dict."""
        self.fill(self.pop_mark())

    def load_dict(self) -> None:
        """A dict of its entries."""
        items = self.pop_mark()
        self.append({})
        self.fill(items)

    def fill(self, items: list[Any]) -> None:
        """Put entries into the dict on top; only plain keys, because the hash of a deep tuple has no bottom."""
        if not isinstance(self.stack[-1], dict) or not all(isinstance(key, str | bytes | int) for key in items[::2]):
            self.refuse()
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def load_append(self) -> None:
        """One element of a list."""
        value = self.stack.pop()
        self.extend([value])

    def load_appends(self) -> None:
        """Several elements of a list."""
        self.extend(self.pop_mark())

    def extend(self, values: list[Any]) -> None:
        """Put elements into the list on top."""
        if not isinstance(self.stack[-1], list):
            self.refuse()
        self.stack[-1] += values

    def load_bytearray8(self) -> None:
        """Bytes, without reserving memory for more than there are."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    for _name in _FORBIDDEN:
        dispatch[getattr(pickle, _name)[0]] = refuse
    for _name in ("REDUCE", "BUILD", "SETITEM", "SETITEMS", "DICT", "APPEND", "APPENDS", "BYTEARRAY8"):
        dispatch[getattr(pickle, _name)[0]] = locals()[f"load_{_name.lower()}"]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dict in a pickle of numbers, strings, lists, tuples, dicts and NumPy arrays; nothing in it is executed.

    Raises:
        DataError: it has anything else.
    """
    check_regular(path, DataError)
    with reading(path, "a pickle of features", advice=ADVICE, kind=DataError):
        found = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    if not isinstance(found, dict) or not found:
        raise DataError(
            f"{path}: holds {type(found).__name__.strip('_')}, but a dict with an entry for each video is needed"
        )
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def pickled_rows(path: Path) -> dict[str, Rows] | None:
    """The rows of each video that the expert has, by its key; None if the file holds no features of videos."""
    found = read_pickle(path)
    if not any(isinstance(value, _Array) for value in found.values()):
        return None
    rows: dict[str, Rows] = {}
    size, limit = 0, path.stat().st_size
    for key, value in found.items():
        values = value.values if isinstance(value, _Array) else value
        if isinstance(values, float) and math.isnan(values):
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
            raise DataError(
                f"{path}: entry {key!r} is no vector and no sequence of vectors, and not NaN for a missing one"
            )
        size += values.nbytes
        if size > limit:
            raise DataError(
                f"{path}: its entries share their arrays and unpack to more than the file's {limit:,} bytes"
            )
        if values.size and not np.isnan(values.flat[0] if values.dtype.kind == "f" else 0.0):
            rows[key] = np.atleast_2d(values).astype(np.float32)
    _check_widths(path, rows)
    return rows


def _check_widths(path: Path, rows: Mapping[str, Rows]) -> None:
    widths = {len(values[0]) for values in rows.values()}
    if len(widths) != 1:
        raise DataError(f"{path}: entries have {sorted(widths) or 'no'} channels; all need the same number")


def read_captions_pickle(path: Path) -> dict[str, list[str]]:
    """The sentences of each video; a sentence is a string or a list of words."""
    captions: dict[str, list[str]] = {}
    count = 0
    for key, sentences in read_pickle(path).items():
        if not isinstance(sentences, list | tuple) or not sentences:
            raise DataError(f"{path}: entry {key!r} must be a list of sentences")
        count += sum(1 if isinstance(words, str) else len(words) for words in sentences if hasattr(words, "__len__"))
        if count > MOST_SENTENCES:
            raise DataError(f"{path}: has more than {MOST_SENTENCES:,} words; its entries share their lists")
        captions[key] = [_sentence(path, key, words) for words in sentences]
    return captions


def _sentence(path: Path, key: str, words: Any) -> str:
    parts = [words] if isinstance(words, str) else words
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts) or not "".join(parts):
        raise DataError(f"{path}: a sentence of {key!r} is no string and no list of words")
    return " ".join(parts)


def _hdf5_videos(files: Iterable[Path]) -> Iterator[tuple[str, dict[str, Rows], list[str]]]:
    """Key, rows of each expert and sentences of each of MMT's files, one for each video."""
    for path in files:
        rows, sentences = {}, []
        with open_hdf5(path) as file, reading(path, "HDF5 of MMT", kind=DataError):
            for name in sorted(file):
                if name.startswith("features."):
                    values = np.asarray(file[name][()])
                    if values.ndim == 2 and values.size and not np.isnan(values[0, 0]):
                        rows[name.removeprefix("features.")] = values.astype(np.float32)
                elif re.fullmatch(r"raw_captions\.\d+", name):
                    words = np.atleast_1d(file[name].asstr()[()]).tolist()
                    sentences.append(" ".join(str(word) for word in words))
        yield path.stem, rows, sentences


def import_ce(folder: Path, out: Path) -> dict[str, int]:
    """Write experts, captions and splits of a folder as plain arrays, with a data config ``data.yaml``.

    The folder has Collaborative Experts' pickles (``raw-captions.pkl`` and one for each expert) or MMT's HDF5 files,
    one for each video, and lists such as ``train_list_full.txt``.

    Returns:
        the channels of each expert.

    Raises:
        DataError: a file has another form; nothing is written.
    """
    experts: dict[str, dict[str, Rows]] = {}
    captions: dict[str, list[str]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".pickle", ".pkl")):
        if "caption" in path.stem:
            captions |= {} if "idx" in path.stem else read_captions_pickle(path)
        elif (rows := pickled_rows(path)) is not None:  # None: features of texts
            name = next(
                (name for name, known in EXPERTS.items() if re.search(known, path.stem, re.I)), path.stem.lower()
            )
            if name in experts:
                raise DataError(f"{path}: is the second file of the expert {name!r}; leave one of them in the folder")
            experts[name] = rows
    for key, found, sentences in _hdf5_videos(sorted(folder.rglob("*.h5"))):
        captions[key] = sentences
        for name, values in found.items():
            experts.setdefault(name, {})[key] = values
    if not experts or not captions:
        raise DataError(f"{folder}: has {len(experts)} experts and captions of {len(captions)} videos; both are needed")
    for name, rows in experts.items():
        _check_widths(folder / name, rows)
    splits = _splits(folder)
    kept = {key: texts for key, texts in captions.items() if texts and (not splits or key in splits)}
    with new_folder(out) as written:
        _write(written, experts, kept, splits)
    return {name: next(iter(rows.values())).shape[1] for name, rows in experts.items()}


def _splits(folder: Path) -> dict[str, str]:
    """The split of each key, from the lists of a folder; a later list never moves a key."""
    found: dict[str, str] = {}
    lists = {"train": "train", "val": "val", "test": "test"}
    names = {split: sorted(folder.rglob(f"{start}_list*.txt")) for split, start in lists.items()}
    if not names["test"] and len(names["val"]) == 1:
        names = {"train": names["train"], "test": names["val"]}  # JSFusion's "val" is its test split
    for split, paths in names.items():
        if len(paths) > 1:
            raise DataError(
                f"{folder}: has several lists of the split {split!r}: {', '.join(p.name for p in paths)}; keep one"
            )
        for path in paths:
            check_regular(path, DataError)
            with reading(path, "a list of keys", kind=DataError):
                keys = path.read_text(encoding="utf-8").split()
            for key in keys:
                found.setdefault(key, split)
    return found


def _write(
    folder: Path,
    experts: Mapping[str, Mapping[str, Rows]],
    captions: Mapping[str, list[str]],
    splits: Mapping[str, str],
) -> None:
    arrays = []
    for name, rows in experts.items():
        keys = [key for key in captions if key in rows]
        np.save(folder / f"{name}.npy", np.concatenate([rows[key] for key in keys]))
        np.save(folder / f"{name}_lengths.npy", np.array([len(rows[key]) for key in keys]))
        write_json(folder / f"{name}_keys.json", keys)
        arrays.append({"values": f"{name}.npy", "lengths": f"{name}_lengths.npy", "ids": f"{name}_keys.json"})
    described = {key: {"captions": texts, "split": splits.get(key, "train")} for key, texts in captions.items()}
    (folder / "captions.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
    text = {
        "values": "text/values.npy",
        "lengths": "text/lengths.npy",
        "ids": "text/owners.json",
        "texts": "text/texts.json",
    }
    video = {**arrays[0], "also": arrays[1:], "join": "separate"}
    values = {"kind": "arrays", "modalities": {"video": video, "text": {**text, "max_frames": None}}}
    values |= {"splits": "captions.json#split", "unpaired": "drop"}
    write_json(folder / "data.yaml", values)  # JSON is YAML
