"""Convolutions that minimal filtering computes: with dilations, along one direction, of many taps."""

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
    "an image": "b = Add(a, e) y = MaxPool<kernel_shape = [2, 2]>(b)",
}


def _choices(dilation: tuple[int, int], size: tuple[int, int], tail: str, target: Target, batch: int = 1) -> list[str]:
    down, across = dilation
    proto = support.model(
        f"""g (float[{batch},8,{size[0]},{size[1]}] x) => (float[a,b,c,d] y) {{ e = Conv(x, u)
            a = Conv<dilations = [{down}, {across}], pads = [{down}, {across}, {down}, {across}]>(e, w, f) {tail}
        }}""",
        18, u=_weight(64, 8, 1, 1), w=_weight(64, 64, 3, 3), f=_weight(64), c=_weight(64, 1, 1),
    )  # fmt: skip
    return [region.kernel.choice for region in compare(proto, tolerance=TOLERANCE, target=target).regions]


@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
@pytest.mark.parametrize("tail", sorted(TAILS))
@pytest.mark.parametrize(("dilation", "size"), [((2, 2), (32, 48)), ((2, 3), (33, 50)), ((3, 1), (31, 32))])
def test_with_dilations(dilation: tuple[int, int], size: tuple[int, int], tail: str, target: Target) -> None:
    assert any(one.startswith("winograd F") for one in _choices(dilation, size, TAILS[tail], target))


def test_images_of_a_batch_with_dilations() -> None:
    assert any(one.startswith("winograd F") for one in _choices((2, 2), (32, 33), TAILS["nothing"], host(), batch=2))


def test_what_has_few_pixels_is_direct() -> None:
    assert not any(one.startswith("winograd") for one in _choices((12, 12), (14, 14), TAILS["nothing"], host()))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tail", ["r = Relu(h)", "r = Add(h, e)", "m = Mul(h, c) r = Add(m, e)"])
@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
def test_kernels_along_planes_alone(target: Target, tail: str, stride: int) -> None:
    """Three planes of a video, beside which lie zeros; what is added lies as the result does."""
    tail = tail if stride == 1 else tail.replace(", e)", ", h)")
    proto = support.model(
        f"""g (float[2,8,9,12,10] x) => (float[a,b,c,d,f] y) {{ e = Conv(x, u)
            h = Conv<pads = [1, 0, 0, 1, 0, 0], strides = [{stride}, 1, 1]>(e, w, f) {tail}
            y = MaxPool<kernel_shape = [1, 2, 2]>(r) }}""",
        18, u=_weight(64, 8, 1, 1, 1), w=_weight(64, 64, 3, 1, 1), f=_weight(64), c=_weight(64, 1, 1, 1),
    )  # fmt: skip
    choices = [region.kernel.choice for region in compare(proto, tolerance=TOLERANCE, target=target).regions]
    assert stride > 1 or any(one.startswith("winograd") and " down " in one for one in choices), choices


@pytest.mark.parametrize("target", [host(), x86_64_v3()], ids=["host", "v3"])
@pytest.mark.parametrize(
    ("size", "kernel", "pads", "dilation", "found"),
    [
        ((200,), (3,), (1, 1), 1, "winograd F(6,3) across"),
        ((200,), (3,), (10, 0), 5, "winograd F(6,3) across"),
        ((200,), (7,), (3, 3), 1, "winograd F(3,7) across"),
        ((200,), (11,), (15, 15), 3, "winograd F(5,4) across"),
        ((34, 34), (5, 5), (2, 2, 2, 2), 1, "winograd F(2,5)"),
        ((17, 18), (1, 7), (0, 3, 0, 3), 1, "winograd F(3,7) across"),
        ((18, 17), (7, 1), (3, 0, 3, 0), 1, "winograd F(3,7) down"),
        ((27, 27), (7, 7), (3, 3, 3, 3), 1, "winograd F(3,4)"),
    ],
)
def test_kernels_of_other_sizes(
    size: tuple[int, ...], kernel: tuple[int, ...], pads: tuple[int, ...], dilation: int, found: str, target: Target
) -> None:
    """Of 64 channels, which a first convolution gives; a second one adds to them."""
    rank, dims = len(size), ",".join(map(str, size))
    proto = support.model(
        f"""g (float[2,8,{dims}] x) => (float[{",".join("abcd"[: rank + 2])}] y) {{ e = Conv(x, u)
            h = Conv<dilations = {[dilation] * rank}, pads = {list(pads)}>(e, w, f) r = Relu(h) s = Add(r, e)
            y = MaxPool<kernel_shape = {[2] * rank}>(s) }}""",
        18, u=_weight(64, 8, *[1] * rank), w=_weight(64, 64, *kernel), f=_weight(64),
    )  # fmt: skip
    choices = [region.kernel.choice for region in compare(proto, tolerance=1e-3, target=target).regions]
    assert any(one.startswith(found) for one in choices), choices
