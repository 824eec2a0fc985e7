"""From samples to batches: joining, order of an epoch, reading ahead."""
