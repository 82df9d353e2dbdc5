"""Export of a run's model: as weights, as a program of plain PyTorch, as ONNX, with a model card."""
