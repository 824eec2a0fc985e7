"""Captions as files, and their scores."""
