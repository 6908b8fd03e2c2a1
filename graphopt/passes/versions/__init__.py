"""Versions: a model at an older opset says the same in the operators of a newer one."""
