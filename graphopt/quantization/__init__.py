"""Which products and convolutions of a model compute in bytes, by their measured errors and latencies.

ONNX Runtime's own quantizers calibrate and write the operators; what stands here chooses, node by node.
"""
