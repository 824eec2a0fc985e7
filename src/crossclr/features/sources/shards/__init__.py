"""Data larger than memory, in shards."""
