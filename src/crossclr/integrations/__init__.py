"""Runs in other libraries: sentence-transformers, MTEB, files of TREC."""
