"""Bodies of operators that ONNX Runtime adds to the standard: `bodies` is their table; the others hold a kind each."""
