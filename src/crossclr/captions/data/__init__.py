"""What a captioner reads: clips, sentences and words."""
