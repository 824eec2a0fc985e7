"""The checked inputs of a loss: options, embeddings and pairs of modalities."""
