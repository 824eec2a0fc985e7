"""The state of one modality beyond the batch: its recent samples and which of them are influential."""
