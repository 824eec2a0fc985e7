"""Sentences: caption files, subtitles, segments and token features."""
