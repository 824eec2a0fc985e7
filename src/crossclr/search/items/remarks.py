"""What is unusual about an item, in words for somebody who searches."""

from dataclasses import dataclass

from crossclr.search.items.item_table import Item


@dataclass(frozen=True)
class Remark:
    """A remark in one to three words, and as a sentence."""

    label: str
    text: str


def remarks(item: Item, tried: int, usual: float) -> list[Remark]:
    """Remarks about one item; none for an ordinary item.

    Of the ``tried`` trial queries, ``usual`` have an average item among their ten best results.

    Example:
        >>> remarks(Item(0, "video/x", "video", "x", hub=60), tried=1000, usual=5.0)[0].text
        'It is among the ten best results of 60 of 1,000 trial queries; the average is 5.'
        >>> remarks(Item(0, "video/x", "video", "x", hub=5), tried=1000, usual=5.0)
        []
    """
    found = []
    if tried and item.hub >= max(4 * usual, usual + 10):
        text = (
            f"It is among the ten best results of {item.hub:,} of {tried:,} trial queries; the average is {usual:.0f}."
        )
        found.append(Remark("common result", text))
    if tried and item.hub == 0:
        found.append(Remark("hard to find", f"None of {tried:,} trial queries has it among its ten best results."))
    if item.influence >= 0.95:
        text = f"It resembles the rest of the collection more than {100 * item.influence:.0f}% of the items do."
        found.append(Remark("typical", text))
    return found
