"""Operators of ONNX as operations of torch, so that autograd gives their gradients: one function an operator."""
