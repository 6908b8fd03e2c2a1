"""The elements that a seed keeps, by NumPy: two rounds of x^5 modulo 2^31 - 1 on each element's place and the seed."""

from __future__ import annotations

from math import prod

import numpy as np

PRIME = 2**31 - 1


def kept(seed: int, stream: int, dims: tuple[int, ...], ratio: float) -> np.ndarray:
    """Which elements of a float32 tensor the Dropout number `stream` (from 1, in the model's order) keeps."""
    start = (seed % PRIME * 1_103_515_245 + stream * 1_664_525) % PRIME
    places = [(place * 48_271 + start) % PRIME for place in range(prod(dims))]
    first = (pow(one, 5, PRIME) for one in places)
    second = (pow((one * 1_597_334_677 + 715_225_741) % PRIME, 5, PRIME) for one in first)
    numbers = (np.array(list(second), np.float64) * (1 / PRIME)).astype(np.float32)
    return (numbers >= np.float32(ratio)).reshape(dims)
