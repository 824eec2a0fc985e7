"""The documentation builds, its links lead somewhere, its code runs, and the commands that it names exist."""

import contextlib
import doctest
import html as html_entities
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch

from crossclr.cli import COMMANDS, load_command, main
from crossclr.data.kinds import BUILDERS
from crossclr.evaluation.metrics import METRICS
from crossclr.extract.registry import PRESETS
from crossclr.losses.names import LOSS_PATHS, loss_class

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
OUTPUT = re.compile(r'title="Output')
NAME = "crossclr "
LOOSE = "figures may differ"
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

with_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings", "latex2mathml")),
    reason="the documentation's tools are not installed (extra docs)",
)


@dataclass(frozen=True)
class Block:
    language: str
    options: str
    text: str
    line: int

    @property
    def title(self) -> str:
        found = re.search(r'title="([^"]*)"', self.options)
        return found[1] if found else ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(f[1], f[2], f[3], text[: f.start()].count("\n") + 2) for f in fences]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def same_output(wanted: str, got: str, loose: bool) -> bool:
    if loose:
        wanted, got = (re.sub(r"\d[\d.,]*(e-\d+)?", "#", text) for text in (wanted, got))
    return doctest.OutputChecker().check_output(wanted, got, SAME)


def run_command(line: str) -> tuple[int, str]:
    """A `crossclr` line in this process: exit code, and what it wrote."""
    before, sys.argv = sys.argv, ["crossclr", *shlex.split(line, comments=True)[1:]]
    written = io.StringIO()
    code = 0
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return code, written.getvalue()


def run_page(page: Path, namespace: dict[str, object]) -> None:
    """Write the files that a page shows, run its code and commands in order, and compare what they print."""
    blocks = blocks_of(page)
    for block, following in zip_longest(blocks, blocks[1:]):
        where = f"{name_of(page)}:{block.line}"
        wanted = following if following is not None and OUTPUT.search(following.options) else None
        if block.language in ("yaml", "json") and block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            if block.title.endswith(".py"):  # a file of the reader's own, which later blocks import
                Path(block.title).write_text(block.text, encoding="utf-8")
            written = io.StringIO()
            with contextlib.redirect_stdout(written):
                exec(compile(block.text, where, "exec"), namespace)
            got = written.getvalue()
        elif block.language == "sh" and wanted is not None:
            results = [run_command(line) for line in block.text.splitlines()]
            got = "".join(text for _, text in results)
            assert all(code == 0 for code, _ in results) or re.match(r"error:|cannot be read:", wanted.text), (
                f"{where}: {got}"
            )
        if wanted is not None:
            assert same_output(wanted.text, got, LOOSE in wanted.title), f"{where}: the output is\n{got}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_the_pages_runs_and_prints_what_they_say(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CROSSCLR_DATA", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with contextlib.ExitStack() as registries:  # a page that adds something changes no other test
        for registry in (COMMANDS, LOSS_PATHS, METRICS, PRESETS, BUILDERS):
            registries.enter_context(patch.dict(registry))
        run_page(page, {"__name__": "page"})


def test_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    given = {"video_emb": torch.randn(8, 4, requires_grad=True), "text_emb": torch.randn(8, 4, requires_grad=True)}
    given |= {"video_feat": torch.randn(8, 6), "text_feat": torch.randn(8, 5), "ids": torch.arange(8)}
    given |= {name: rng.normal(size=(20, 3)) for name in ("images", "texts", "test_images", "test_texts")}
    run_page(ROOT / "README.md", dict(given))


# Commands


def command_lines(page: Path) -> list[tuple[str, str]]:
    """Every `crossclr ...` line of the code blocks and of inline code, with its place."""
    text = page.read_text(encoding="utf-8")
    shown = [
        (line, block.line) for block in blocks_of(page) if block.language == "sh" for line in block.text.splitlines()
    ]
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    shown += [(line, 0) for line in re.findall(r"`(crossclr [^`]+)`", without_blocks)]
    added = tuple(f"crossclr {name}" for name in re.findall(r'COMMANDS\["(\w+)"\] =', text))  # by the page itself
    lines = [(line.strip(), f"{name_of(page)}:{number}") for line, number in shown]
    return [pair for pair in lines if pair[0].startswith("crossclr ") and not pair[0].startswith(added)]


def parsed(line: str) -> tuple[list[str], list[str]]:
    """Words and options of a command line, without what a shell does with its output."""
    parts = shlex.split(line.split(" > ")[0], comments=True)[1:]
    return [part for part in parts if not part.startswith("-")], [p.split("=")[0] for p in parts if p.startswith("-")]


ALL_LINES = [pair for page in TEXTS for pair in command_lines(page)]


def test_there_are_commands_to_check():
    assert len(ALL_LINES) > 20


@pytest.mark.parametrize(("line", "place"), ALL_LINES, ids=[f"{place} {line}" for line, place in ALL_LINES])
def test_commands_and_options_exist(line, place):
    words, options = parsed(line)
    if not words or words[0] in ("COMMAND", "..."):
        assert set(options) <= {"--debug", "--version", "--help"}
        return
    command = load_command(words[0])
    if getattr(command, "commands", None) and len(words) > 1:
        command = command.commands[words[1]]
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    assert set(options) <= known | {"--help", "--debug"}, f"{place}: {line}"


# The built site


FETCHED = ("stylesheet", "icon", "preload", "preconnect", "modulepreload")


class _Page(HTMLParser):
    """Links, sources and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            if tag in ("script", "img", "iframe", "source") and name in values:
                self.loaded.append(values[name])
            if (
                tag == "link"
                and name in values
                and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect")
            ):
                self.loaded.append(values[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # without --quiet, which would also hide the warnings from --strict
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr + built.stdout
    return folder


@pytest.fixture(scope="module")
def html(site):
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


@with_mkdocs
def test_internal_links_lead_somewhere(site, html):
    broken = []
    for path, page in html.items():
        if path.name == "404.html":  # its links are absolute, for wherever it is served
            continue
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                parts.fragment and target in html and parts.fragment not in html[target].anchors
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


@with_mkdocs
def test_nothing_is_fetched_from_elsewhere(site, html):
    outside = [
        f"{path.relative_to(site)}: {source}"
        for path, page in html.items()
        for source in page.loaded
        if "//" in source and not source.startswith("data:")
    ]
    assert not outside


@with_mkdocs
def test_formulas_are_mathml(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "arithmatex" not in text
        assert ".. math::" not in text
    assert "<math" in (site / "losses" / "crossclr" / "index.html").read_text(encoding="utf-8")


# The generated pages


@pytest.fixture(scope="module")
def generated():
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def as_read(markdown: str) -> str:
    return html_entities.unescape(markdown).replace(r"\|", "|")


def test_no_word_of_a_generated_page_is_taken_for_html(generated):
    for page in ("reference/commands.md", "reference/configs.md"):
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", generated[page], flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"<\w+", prose)


def test_every_option_of_every_command_is_in_the_reference(generated):
    page = generated["reference/commands.md"]
    for name in COMMANDS:
        command = load_command(name)
        for word, inner in (getattr(command, "commands", None) or {"": command}).items():
            section = page.split(f"## crossclr {name} {word}".rstrip() + "\n")[1].split("\n## ")[0]
            for parameter in inner.params:
                for option in [*parameter.opts, *parameter.secondary_opts]:
                    if option.startswith("--") and option != "--help":
                        assert f"`{option}`" in section
                if parameter.name != "help":
                    assert parameter.help in as_read(section)


def test_every_field_of_a_config_is_in_the_reference(generated):
    from crossclr.training import load_config
    from crossclr.training.config_files import describe_config

    page = generated["reference/configs.md"]
    for config in ("emoji", "msvd", "youcook2-100m"):
        for line in describe_config(load_config(config)).splitlines():
            sentence = line.strip()
            if sentence.startswith("# "):
                assert sentence[2:] in as_read(page)


def test_every_option_of_every_loss_is_in_the_reference(generated):
    import inspect

    page = generated["reference/configs.md"]
    for name in LOSS_PATHS:
        section = page.split(f"### {name}\n")[1].split("\n### ")[0]
        for option in inspect.signature(loss_class(name)).parameters:
            row = next(line for line in section.splitlines() if line.startswith(f"| `{option}` |"))
            assert len(row.rstrip(" |").split("|")[-1].strip()) > 10  # a sentence
