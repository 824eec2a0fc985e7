"""A run as a model of sentence-transformers: `SentenceTransformer(folder, trust_remote_code=True)`.

The folder holds the shared files of the run and no code: ``modules.json`` names `RunModule` of this package, which
sentence-transformers imports only if you allow it. `load_sentence_transformer` opens the folder without that question.
"""

import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from crossclr.extras import requires_extra
from crossclr.integrations.run_encoder import AcceptedInputs, RunEncoder
from crossclr.storage import write_file
from crossclr.storage.reading import read_json_object
from crossclr.training import Run
from crossclr.training.shared_files import check_content, write_shared

with requires_extra("sentence-transformers", "A model of sentence-transformers"):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.input_module import InputModule

if TYPE_CHECKING:
    from typing import Self

INPUTS = "crossclr_inputs.json"
LIBRARY = "sentence_transformers"
USE = """
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}", trust_remote_code=True)  # imports the installed package crossclr
model.encode_query("a sad cat") @ model.encode_document(["image.png"]).T
```
"""


def export_sentence_transformer(run: Run, out: str | Path) -> Path:
    """Write a folder that sentence-transformers opens; the run and its data stay as they are."""
    out, inputs = Path(out), AcceptedInputs.of_run(run)
    module = {"idx": 0, "name": "0", "path": "", "type": f"{RunModule.__module__}.{RunModule.__name__}"}
    settings = {
        "model_type": "SentenceTransformer",
        "__version__": {LIBRARY: "5.4.0", "crossclr": metadata.version("crossclr")},
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_shared(run, out, out.name, use=USE.format(name=out.name))
    for name, content in (
        ("modules.json", [module]),
        ("config_sentence_transformers.json", settings),
        (INPUTS, asdict(inputs)),
    ):
        write_file(out / name, json.dumps(content, indent=2))
    return out


def load_sentence_transformer(folder: str | Path, device: str = "cpu") -> SentenceTransformer:
    """Open an exported folder."""
    return SentenceTransformer(modules=[RunModule.load(str(folder))], device=device, similarity_fn_name="cosine")


class RunModule(InputModule):  # type: ignore[misc]
    """The one module of an exported model; it accepts what `RunEncoder.rows` does.

    Args:
        folder: where it was exported.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        path = Path(folder)
        check_content(path, str(path))
        self.folder = folder
        self.space = Run.open(path).load_space()
        self.encoder = RunEncoder(
            self.space, AcceptedInputs(**read_json_object(path / INPUTS, "text", "experts", "limits"))
        )

    @classmethod
    def load(cls, model_name_or_path: str, **options: Any) -> "Self":
        """Open a folder, or a model of the hub that sentence-transformers has downloaded."""
        path = cls.load_dir_path(
            model_name_or_path,
            **{key: options.get(key) for key in ("token", "cache_folder", "revision")},
            local_files_only=bool(options.get("local_files_only")),
        )
        return cls(str(path))

    @property
    def modalities(self) -> list[str | tuple[str, ...]]:
        """All that sentence-transformers knows; what the run lacks is reported when it is given."""
        names = ("text", "image", "audio", "video", "message")
        return [*names, *((name,) for name in names)]  # version 5 takes {"image": ...} for a tuple of modalities

    def preprocess(self, inputs: Any, prompt: str | None = None, task: str | None = None, **_: Any) -> dict[str, Any]:
        """The feature rows of inputs; a prompt is not used."""
        return {"rows": self.encoder.rows(inputs), "task": task}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Tensor | Any]:
        """Add the vectors."""
        task = features["task"] if features["task"] in ("query", "document") else None
        vectors = self.encoder.encode_rows(features["rows"], task)
        return {**features, "sentence_embedding": vectors.to(self.space.device)}

    def get_embedding_dimension(self) -> int:
        """Channels of a vector."""
        return self.encoder.dim

    get_sentence_embedding_dimension = get_embedding_dimension  # its name in version 5

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Refuse: the weights were fitted as a whole."""
        raise NotImplementedError(f"an exported run is not saved again; copy its folder {self.folder}")
