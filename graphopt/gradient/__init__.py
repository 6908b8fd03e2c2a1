"""Gradients of models in ONNX's own operators: reverse mode, losses, training steps."""
