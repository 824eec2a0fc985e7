"""The folder of a run: config, environment, metrics, checkpoints and results."""
