"""Decode a recording and prepare the inputs of its experts, in one pass over the file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from crossclr.experts.contract import Expert, FrameExpert, SoundExpert
from crossclr.experts.media.decoding import End, decode
from crossclr.experts.media.grids import Frame, Sound

Decoder = Callable[[Path, Sequence[float], Sequence[int], int], Iterator[Frame | Sound | End]]


@dataclass(frozen=True)
class Input:
    """An input of one expert."""

    expert: Expert  # who encodes it
    content: Any  # a prepared image, or samples of sound
    time: float  # seconds of the recording up to here


def prepared_inputs(
    path: Path, experts: Sequence[Expert], threads: int = 1, decoder: Decoder = decode
) -> Iterator[Input | End]:
    """The inputs of all experts as the file is decoded, then the end of the file."""
    frames = [expert for expert in experts if isinstance(expert, FrameExpert)]
    sounds = [expert for expert in experts if isinstance(expert, SoundExpert)]
    rates = sorted({expert.needs.rate for expert in frames})
    sound_rates = sorted({int(expert.needs.rate) for expert in sounds})
    heard = [0] * len(sound_rates)  # samples so far
    last: dict[str, tuple[Any, Tensor]] = {}  # the latest image of each expert, raw and prepared
    for event in decoder(path, rates, sound_rates, threads):
        if isinstance(event, End):
            yield event
        elif isinstance(event, Frame):
            for expert in frames:
                if expert.needs.rate == rates[event.grid]:
                    if expert.name not in last or last[expert.name][0] is not event.image:
                        last[expert.name] = (event.image, expert.prepare(event.image))
                    yield Input(expert, last[expert.name][1], (event.number + 1) / rates[event.grid])
        else:
            heard[event.grid] += len(event.samples)
            for sound in sounds:
                if int(sound.needs.rate) == sound_rates[event.grid]:
                    yield Input(sound, event.samples, heard[event.grid] / sound_rates[event.grid])
