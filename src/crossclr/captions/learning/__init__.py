"""How a captioner is trained."""
