"""From sentences and feature rows to query vectors, in PyTorch and in ONNX."""
