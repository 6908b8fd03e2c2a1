"""Families of networks that the light files lack, made with onnx.helper: small, seeded, the same bytes every time.

`build(name)` gives a model, `sizes(name)` a size for each of its dynamic dims, at which it runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from models.families import (
    cached_decoder,
    diffusion_unet,
    encoder,
    odd_groups,
    plain_stacks,
    shifted_windows,
    silu_detector,
    squeeze_excite,
)


class UnknownFamilyError(KeyError):
    """A name that is no family; the message gives the nearest one."""

    def __init__(self, name: str) -> None:
        nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)
        super().__init__(f"There is no family {name!r}. The nearest name is {nearest[0]!r}.")

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the sentence.
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Family:
    """How a family is built from a seed, and the sizes of its dynamic dims."""

    build: Callable[[int], onnx.ModelProto]
    sizes: Mapping[str, int]


FAMILIES: Mapping[str, Family] = {
    "cached_decoder": Family(cached_decoder.build, cached_decoder.SIZES),
    "diffusion_unet": Family(diffusion_unet.build, diffusion_unet.SIZES),
    "diffusion_unet_opset21": Family(diffusion_unet.build_newer, diffusion_unet.SIZES),
    "masked_encoder": Family(encoder.build, encoder.SIZES),
    "masked_encoder_10000": Family(encoder.build_older, encoder.SIZES),
    "masked_encoder_fp16": Family(encoder.build_half, encoder.SIZES),
    "odd_groups": Family(odd_groups.build, odd_groups.SIZES),
    "plain_stacks": Family(plain_stacks.build, plain_stacks.SIZES),
    "shifted_windows": Family(shifted_windows.build, shifted_windows.SIZES),
    "silu_detector": Family(silu_detector.build, silu_detector.SIZES),
    "squeeze_excite": Family(squeeze_excite.build, squeeze_excite.SIZES),
}


def names() -> tuple[str, ...]:
    """Names of the families."""
    return tuple(sorted(FAMILIES))


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """The family `name` with weights drawn with `seed`."""
    return _family(name).build(seed)


def sizes(name: str) -> dict[str, int]:
    """A size for each dynamic dim of `name`, with which the model runs; empty when it has none."""
    return dict(_family(name).sizes)


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise UnknownFamilyError(name)
    return FAMILIES[name]
