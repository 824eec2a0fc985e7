"""Pages that the documentation makes from the code: commands, configs and the API. A hook of mkdocs; see mkdocs.yml.

Nothing of this is stored, so it cannot lag behind the code. Formulas become MathML here too, which browsers show
without any script.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"
PROJECT = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
STAGES = ("extract", "data", "models", "losses", "training", "evaluation", "search", "captions", "studies")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the API pages of the stages that are there into the navigation."""
    for entry in config.nav or []:
        if "Reference" in entry:
            entry["Reference"].append(
                {"Python": [{"crossclr": "api/index.md"}, *({s: f"api/{s}.md"} for s in stages())]}
            )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    for path, text in {**pages(), "images/default-rivals.svg": rivals_figure(protocol)}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, and Sphinx's roles in docstrings as plain code."""
    return with_mathml(content.replace(":class:<code>", "<code>"))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """A name for the theme's search dialogue, for readers who use a screen reader."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def rivals_figure(protocol: str) -> str:
    """The figure of the results, by the program next to this file."""
    spec = importlib.util.spec_from_file_location("rivals_figure", ROOT / "tools" / "rivals_figure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.figure(protocol))


def pages() -> dict[str, str]:
    """All generated pages by their path."""
    found = {"reference/commands.md": "\n".join(commands_page()), "reference/configs.md": "\n".join(configs_page())}
    found["api/index.md"] = "\n".join(api_page("crossclr"))
    found.update({f"api/{stage}.md": "\n".join(api_page(f"crossclr.{stage}")) for stage in stages()})
    found.update(
        {f"notebooks/{path.stem}.md": "\n".join(notebook_page(path)) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    )
    found.update({name: (ROOT / source).read_text(encoding="utf-8") for name, source in PROJECT.items()})
    return found


def stages() -> list[str]:
    """The stages that the package has, with names for others to use."""
    there = [stage for stage in STAGES if importlib.util.find_spec(f"crossclr.{stage}")]
    return [stage for stage in there if hasattr(importlib.import_module(f"crossclr.{stage}"), "__all__")]


# --------------------------------------------------------------------------------------------------------- notebooks


def notebook_page(path: Path) -> Iterator[str]:
    """The cells of a notebook with their stored outputs."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{source}\n"
            continue
        yield f"```python\n{source}\n```\n"
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![What the cell above draws](data:image/png;base64,{''.join(data['image/png']).strip()})\n"
            elif text := "".join(output.get("text", data.get("text/plain", ""))).strip():
                yield f"```text\n{text}\n```\n"


# ---------------------------------------------------------------------------------------------------------- commands


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups opened."""
    from crossclr.cli import COMMANDS, load_command

    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", None)
        if inner:
            yield from ((f"{name} {word}", part) for word, part in inner.items())
        else:
            yield name, command


def commands_page() -> Iterator[str]:
    """What ``--help`` says, for every command."""
    yield "# Commands\n"
    yield "Made from the code. `crossclr COMMAND --help` says the same in the terminal.\n"
    yield "Each command is a thin wrapper over a Python function. Exit codes: 0 success, 1 problems found"
    yield "(`check`), 2 error (one line on stderr), 130 interrupted. `crossclr --debug COMMAND`"
    yield "shows the whole traceback of an error; `crossclr --version` the version.\n"
    for name, command in commands():
        text, examples = _help(command.help or "")
        parameters = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        arguments = [p for p in parameters if not p.opts[0].startswith("-")]
        options = [p for p in parameters if p.opts[0].startswith("-")]
        yield f"## crossclr {name}\n"
        yield f"{text}\n"
        words = [_argument(p) for p in arguments] + (["[OPTIONS]"] if options else [])
        yield f"```text\ncrossclr {' '.join([name, *words])}\n```\n"
        if parameters:
            yield "| | meaning | default |\n|---|---|---|"
            yield from (f"| `{_argument(p)}` | {_cell(p.help)} | {_standard(p)} |" for p in arguments)
            yield from (f"| {_option(p)} | {_cell(p.help)} | {_standard(p)} |" for p in options)
            yield ""
        if examples:
            yield "```sh\n" + "\n".join(examples) + "\n```\n"


def _help(text: str) -> tuple[str, list[str]]:
    """Description and example lines of a command's docstring."""
    description, _, examples = text.partition("Examples:")
    return _plain(description.strip()), [line.strip() for line in examples.splitlines() if line.strip()]


def _argument(parameter: Any) -> str:
    word = (parameter.metavar or parameter.name).upper()
    word = f"{word}..." if parameter.nargs == -1 else word
    return word if parameter.required else f"[{word}]"


def _option(parameter: Any) -> str:
    names = " / ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return names if getattr(parameter, "is_flag", False) else f"{names} `{parameter.metavar or parameter.name.upper()}`"


def _standard(parameter: Any) -> str:
    default = getattr(parameter.default, "value", parameter.default)
    if parameter.required:
        return "required"
    if getattr(parameter, "is_flag", False):
        return f"`{(parameter.opts if default else parameter.secondary_opts or ['off'])[0]}`"
    return "" if default is None or default == [] or callable(default) else f"`{default}`"


# ----------------------------------------------------------------------------------------------------------- configs


def configs_page() -> Iterator[str]:
    """Every field of a config with its type, its default and its sentence."""
    from crossclr.losses.names import LOSS_PATHS, loss_class
    from crossclr.training import RunConfig, config_names, load_config
    from crossclr.training.run_config import TermConfig

    yield "# Configs\n"
    yield "Made from the code: every field that a YAML config may have. An unknown field is an error that names the"
    yield "nearest known one. `crossclr config show NAME` prints a whole config with these sentences,"
    yield "`crossclr config copy NAME` makes one your own, and `--set a.b=value` changes a field on the command line.\n"
    yield "## Shipped configs\n"
    yield "| name | what it is |\n|---|---|"
    yield from (f"| `{name}` | {_cell(load_config(name).about)} |" for name in config_names())
    yield ""
    for path, model in sections(RunConfig):
        yield f"## {_title(path, model)}\n"
        yield f"{_first_paragraph(model)}\n"
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        for name, field in ordered_fields(model):
            kind, default, meaning = _type(field.annotation), _default(field), _cell(field.description)
            yield f"| `{field.alias or name}` | {kind} | {default} | {meaning} |"
        yield ""
    yield "## Options of the losses\n"
    yield "They stand in `loss.local` and `loss.global`, and are the arguments of `build_loss`. "
    yield f"`name`: {TermConfig.model_fields['name'].description}"
    for name in LOSS_PATHS:
        loss = loss_class(name)
        sentences = argument_sentences(loss)
        yield f"\n### {name}\n"
        yield f"{_first_paragraph(loss)}\n"
        yield "| option | default | meaning |\n|---|---|---|"
        for parameter in inspect.signature(loss).parameters.values():
            yield f"| `{parameter.name}` | {_yaml(parameter.default)} | {_cell(sentences.get(parameter.name))} |"


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """A config's model and all models within it, each with the path of its section."""
    yield path, model
    for name, field in ordered_fields(model):
        inner = f"{path}.{field.alias or name}".lstrip(".")
        for found in _models(field.annotation):
            if found.__name__ != "TermConfig":  # its options are those of the losses
                yield from sections(found, inner)


def ordered_fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """The fields, those of the run itself (name, data) first."""
    return sorted(model.model_fields.items(), key=lambda item: item[0] not in ("name", "about", "data", "kind"))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _models(part)


def _title(path: str, model: type[BaseModel]) -> str:
    if not path:
        return "The whole config"
    kind = model.model_fields.get("kind")
    return f"`{path}`" + (f" of kind `{kind.default}`" if kind is not None else "")


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    if origin in (list, tuple):
        return ("list of " if origin is list else "") + ", ".join(_type(part) for part in parts)
    if origin is dict:
        return f"mapping to {_type(parts[1])}"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}
    if annotation in names:
        return names[annotation]
    return "section"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined and field.default_factory is None:
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"`name: {value.name}`" if hasattr(value, "name") and not _is_section(field) else "see below"
    return _yaml(value)


def _is_section(field: FieldInfo) -> bool:
    return any(model.__name__ != "TermConfig" for model in _models(field.annotation))


def _yaml(value: Any) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return "`''`" if value == "" else f"`{value}`"


def argument_sentences(thing: Any) -> dict[str, str]:
    """The sentences of the ``Args:`` section of a docstring.

    Example:
        >>> from crossclr.losses import MaxMargin
        >>> argument_sentences(MaxMargin)
        {'margin': 'how far a positive must lie above every negative.'}
    """
    text = inspect.getdoc(thing) or ""
    block = re.search(r"^Args:\n(.*?)(?:\n\S|\Z)", text, re.DOTALL | re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", (block[1] if block else "") + "\n", re.DOTALL | re.MULTILINE)
    return {name: " ".join(sentence.replace("``", "`").split()) for name, sentence in found}


def _first_paragraph(thing: Any) -> str:
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return _plain(" ".join(paragraph.split())).replace("_", r"\_")


def _cell(text: str | None) -> str:
    return _plain(" ".join((text or "").split())).replace("|", r"\|")


def _plain(text: str) -> str:
    """Text in which ``<name>`` is no HTML, except in code, where Markdown sees to it."""
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", text))


# --------------------------------------------------------------------------------------------------------------- API


def api_page(package: str) -> Iterator[str]:
    """The public names of a package, each with its docstring."""
    module = importlib.import_module(package)
    yield f"# {package}\n"
    yield f"{inspect.getdoc(module)}\n"
    for name in sorted((n for n in module.__all__ if not n.startswith("__")), key=str.lower):
        if inspect.getdoc(getattr(module, name)) and not isinstance(getattr(module, name), (dict, tuple, str)):
            yield f"::: {package}.{name}\n"


# ------------------------------------------------------------------------------------------------------------- maths


def with_mathml(content: str) -> str:
    """Replace ``\\(..\\)``, ``\\[..\\]`` (from arithmatex) and ``.. math::`` blocks of docstrings by MathML."""
    content = re.sub(
        r'<p>\.\. math::</p>\s*<div class="[^"]*highlight[^"]*">.*?<code[^>]*>(.*?)</code></pre></div>',
        lambda found: _mathml(re.sub(r"<[^>]+>", "", found[1]), "block"),
        content,
        flags=re.DOTALL,
    )
    for pattern, display in (
        (r'<div class="arithmatex">\\\[(.*?)\\\]</div>', "block"),
        (r'<span class="arithmatex">\\\((.*?)\\\)</span>', "inline"),
    ):
        content = re.sub(pattern, partial(_matched, display), content, flags=re.DOTALL)
    return content


def _matched(display: str, found: re.Match[str]) -> str:
    return _mathml(found[1], display)


def _mathml(latex: str, display: str) -> str:
    formula = convert(html.unescape(latex).strip(), display=display)
    return f'<div class="formula">{formula}</div>' if display == "block" else formula
