"""The data of a captioner: clips, sentences and words."""
