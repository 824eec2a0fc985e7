"""The config of the built-in emoji set."""

from typing import Literal

from pydantic import Field

from crossclr.features.sources.config_base import DataConfigBase

_MODALITY = r"^(text|(noto|fluent|twemoji)(\+(noto|fluent|twemoji))*)$"


class EmojiConfig(DataConfigBase):
    """The built-in set: emoji drawn by three vendors, with names and tags."""

    kind: Literal["emoji"] = Field(default="emoji", description="The built-in set.")
    a: str = Field(
        default="noto",
        pattern=_MODALITY,
        description="First modality: noto, fluent, twemoji or text; drawings given as noto+fluent are joined on the "
        "channel axis.",
    )
    b: str = Field(default="text", pattern=_MODALITY, description="Second modality, with the same choices.")
    two_level: bool = Field(default=False, description="Whether the emoji of a Unicode subgroup form a video of clips.")
    vary: bool = Field(
        default=False,
        description="In training, take each drawing from a random vendor, and replace half of the texts by a colour "
        "and a tag, such as `red fruit`. Needs crossclr[experts].",
    )

    @property
    def modalities(self) -> tuple[str, str]:
        """Names of the two modalities; see `modality_names`."""
        return modality_names(self.a, self.b)

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        return f"The built-in emoji set: `{self.a}` and `{self.b}`."

    def licence(self) -> str:
        """The terms of the drawings and names."""
        return (
            "Drawings: Noto Emoji (Google, Apache-2.0), Fluent Emoji (Microsoft, MIT), Twemoji (Twitter and "
            "contributors, CC BY 4.0). Names and tags: emojibase-data (MIT) with Unicode CLDR (Unicode-3.0). "
            "`crossclr/data/emoji/LICENSES.md` in the package has the details."
        )

    def caveats(self) -> tuple[str, ...]:
        """What the set does not cover."""
        return ("Images are drawings of emoji; the model does not know photographs. Texts are English.",)


def modality_names(a: str, b: str) -> tuple[str, str]:
    """Names for two modalities of the set: ``image`` and ``text``, or the vendors if both are drawings.

    Example:
        >>> modality_names("noto+fluent", "text"), modality_names("noto", "fluent"), modality_names("text", "text")
        (('image', 'text'), ('noto', 'fluent'), ('text-a', 'text'))
    """
    if a == b:
        return f"{a}-a", b
    if "text" in (a, b):
        return "text" if a == "text" else "image", "text" if b == "text" else "image"
    return a, b
