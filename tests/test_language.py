"""Plain English: words and phrases that readers stumble over are in no page, help text, error or config."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AVOID = (  # what to write instead
    (r"(is|are) told|tells", "reports, says"),
    (r"shall", "should, must, or the present"),
    (r"left (out|alone)", "omitted, unchanged"),
    (r"alike", "similar"),
    (r"nearest of all", "nearest"),
    (r"at the most", "at most N"),
    (r"(?<!\.)(?<!def )beside", "next to"),
    (r"drawn (to|towards)", "moved towards"),
    (r"goes on", "resumes"),
    (r"(made )?anew", "rebuilt"),
    (r"typing errors?", "typo"),
    (r"has the wish|wishes", "requests, wants"),
    (r"reckoned", "estimated"),
    (r"CCA floor", "CCA baseline"),
    (r"a fault in the data", "invalid data"),
)
WORD_LISTS = {"words.py"}  # English words as data
FILES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        path
        for kind in ("*.py", "*.yaml")
        for path in sorted((ROOT / "src").rglob(kind))
        if path.name not in WORD_LISTS
    ),
]


def advice(text: str) -> list[str]:
    """Each phrase to avoid with the line that has it."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for phrase, instead in AVOID:
            if match := re.search(rf"(?<!\w)({phrase})\b", line, re.IGNORECASE):
                found.append(f"line {number}: {match[0]!r}; write: {instead}")
    return found


def test_the_check_can_fail():
    assert (
        advice("fine\nSamples that are alike shall be left out.")[0]
        == "line 2: 'shall'; write: should, must, or the present"
    )
    assert len(advice("Samples that are alike shall be left out.")) == 3


@pytest.mark.parametrize("folder", ["docs", "src", "."])
def test_no_file_has_a_phrase_to_avoid(folder):
    chosen = [
        path for path in FILES if path.relative_to(ROOT).parts[0] == folder or (folder == "." and path.parent == ROOT)
    ]
    assert chosen
    found = [
        f"{path.relative_to(ROOT)}: {text}" for path in chosen for text in advice(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
