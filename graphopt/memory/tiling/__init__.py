"""Tiling for memory: a part of a model computed piece by piece along an axis, so that less lives at a time."""
