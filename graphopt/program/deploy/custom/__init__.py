"""Programs as custom operators of ONNX Runtime: the library, the ONNX file beside it, both in a session."""
