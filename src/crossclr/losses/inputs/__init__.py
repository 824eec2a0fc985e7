"""What a loss checks before it computes: options, embeddings, and which pairs of modalities count."""
