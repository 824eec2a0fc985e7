"""Embeddings as files, one split at a time or shard by shard."""
