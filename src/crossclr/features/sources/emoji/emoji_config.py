"""The config of the built-in emoji set."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from crossclr.features.sources.config_base import DataConfigBase, ModalityName

Drawing = Annotated[str, StringConstraints(pattern=r"^(text|(noto|fluent|twemoji)(\+(noto|fluent|twemoji))*)$")]


class EmojiConfig(DataConfigBase):
    """The built-in set: emoji drawn by three vendors, with names and tags."""

    kind: Literal["emoji"] = Field(default="emoji", description="The built-in set.")
    modalities: dict[ModalityName, Drawing] = Field(
        default={"image": "noto", "text": "text"},
        min_length=2,
        description="The content of each modality by its name: noto, fluent, twemoji or text; drawings given as "
        "noto+fluent are joined on the channel axis.",
    )
    two_level: bool = Field(default=False, description="Whether the emoji of a Unicode subgroup form a video of clips.")
    vary: bool = Field(
        default=False,
        description="In training, take each drawing from a random vendor, and replace half of the texts by a colour "
        "and a tag, such as `red fruit`. Needs crossclr[experts].",
    )

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        parts = ", ".join(f"{name}: `{content}`" for name, content in self.modalities.items())
        return f"The built-in emoji set. {parts}."

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
