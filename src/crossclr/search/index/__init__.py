"""Vectors and where they are stored: the contract of a back end, faiss, Milvus, generations on disk."""
