"""Human scores: one human caption of each clip, scored against the others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from crossclr.captions.scoring.caption_metrics import Scores, score_captions
from crossclr.captions.scoring.meteor import Meteor
from crossclr.captions.scoring.predictions import Caption


def human_ceiling(
    references: Mapping[str, Sequence[str]],
    seed: int = 0,
    *,
    with_meteor: bool = True,
    meteor: Meteor | None = None,
) -> Scores | None:
    """Score human captions leave-one-out: a random one of each video against the others.

    Args:
        references: the captions of each video.
        seed: of the draw.
        with_meteor: include METEOR.
        meteor: METEOR that is already running.

    Returns:
        the scores, or None if any video has a single reference.

    Example:
        >>> human_ceiling({"v": ["a cat sleeps"]}) is None
        True
    """
    if any(len(several) < 2 for several in references.values()):
        return None
    draw = random.Random(seed)
    chosen = {key: draw.randrange(len(several)) for key, several in references.items()}
    written = {key: [Caption(several[chosen[key]])] for key, several in references.items()}
    others = {
        key: [text for number, text in enumerate(several) if number != chosen[key]]
        for key, several in references.items()
    }
    return score_captions(written, others, with_meteor=with_meteor, meteor=meteor)
