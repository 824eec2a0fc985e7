"""The paper's tables and figures on the paper's data: its settings, its numbers next to ours."""

from crossclr.analysis.reproduce.paper_numbers import TARGETS, PaperTable, paper_table
from crossclr.analysis.reproduce.reproduce import Reproduction, open_reproduction, reproduce

__all__ = ["TARGETS", "PaperTable", "Reproduction", "open_reproduction", "paper_table", "reproduce"]
