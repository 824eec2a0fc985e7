"""Feature rows of two modalities: sources, samples, batches."""
