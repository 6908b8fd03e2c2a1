"""Convolutions with dilations as plain ones of smaller images."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.target import Target, host, x86_64_v3
from tests import support
from tests.program.regions.running import compare

TOLERANCE = 2e-4  # Winograd's transforms of sums of 576 products


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng([9, *shape]).standard_normal(shape).astype(np.float32) / 8


TAILS = {
    "nothing": "y = MaxPool<kernel_shape = [2, 2]>(a)",
    "numbers of channels": "b = Mul(a, c) d = Relu(b) y = MaxPool<kernel_shape = [2, 2]>(d)",
    "a number": "b = LeakyRelu(a) d = Div(b, two) y = MaxPool<kernel_shape = [2, 2]>(d)",
}


def _regions(dilation: tuple[int, int], size: tuple[int, int], tail: str, target: Target, batch: int = 1) -> list[str]:
    down, across = dilation
    proto = support.model(
        f"""g (float[{batch},8,{size[0]},{size[1]}] x) => (float[a,b,c,d] y) {{ e = Conv(x, u)
            a = Conv<dilations = [{down}, {across}], pads = [{down}, {across}, {down}, {across}]>(e, w, f) {tail}
        }}""",
        18, u=_weight(64, 8, 1, 1), w=_weight(64, 64, 3, 3), f=_weight(64), c=_weight(64, 1, 1),
        two=np.float32(2).reshape(()),
    )  # fmt: skip
    return [region.kernel.choice for region in compare(proto, tolerance=TOLERANCE, target=target).regions]


@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
@pytest.mark.parametrize("tail", sorted(TAILS))
@pytest.mark.parametrize(
    ("dilation", "size", "copies"),
    [((2, 2), (32, 48), 2), ((2, 2), (33, 32), 5), ((2, 3), (33, 50), 9), ((3, 1), (31, 32), 5)],
)
def test_pixels_are_parted_and_joined(
    dilation: tuple[int, int], size: tuple[int, int], copies: int, tail: str, target: Target
) -> None:
    found = _regions(dilation, size, TAILS[tail], target)
    assert any(one.startswith("winograd") for one in found) and len(found) == 3 + copies + 1


def test_images_of_a_batch_are_parted() -> None:
    assert any(one.startswith("winograd") for one in _regions((2, 2), (32, 33), TAILS["nothing"], host(), batch=2))


@pytest.mark.parametrize("tail", ["b = Add(a, e) y = MaxPool<kernel_shape = [2, 2]>(b)", "y = Identity(a)"])
def test_what_follows_reads_pixels_where_they_are(tail: str) -> None:
    """The epilogue of a convolution of parted pixels would find others; a caller reads rows."""
    assert not any(one.startswith("winograd") for one in _regions((2, 2), (32, 32), tail, host()))


def test_what_has_few_pixels_is_direct() -> None:
    assert not any(one.startswith("winograd") for one in _regions((12, 12), (14, 14), TAILS["nothing"], host()))
