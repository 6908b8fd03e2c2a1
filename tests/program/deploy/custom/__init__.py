"""Custom operators of ONNX Runtime."""
