from __future__ import annotations

import math
from typing import Any

import torch

from crossclr.models.layers import Positions, position_table


def test_table_is_the_formula() -> None:
    table = position_table(40, 6, torch.float64)
    for position in range(40):
        for channel in range(6):
            angle = position / 10000 ** (2 * channel / 6)
            expected = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
            assert abs(float(table[position, channel]) - expected) < 1e-12


def test_table_is_bit_equal_to_the_one_in_a_checkpoint(coot_fixture: dict[str, Any]) -> None:
    stored = torch.as_tensor(coot_fixture["state"]["net_video_local"]["embedding.pe"])
    assert torch.equal(position_table(1000, 16), stored)


def test_table_grows_and_is_not_in_the_state() -> None:
    positions = Positions(4)
    places = torch.tensor([0, 700, 3])
    out = positions(torch.zeros(3, 4), places, 701)
    assert torch.equal(out, position_table(701, 4)[places])
    assert positions.state_dict() == {}
    assert positions(torch.zeros(3, 4, dtype=torch.float64), places, 701).dtype == torch.float64
