"""Sentences: caption files, subtitles, segments, and token features of whole files."""
