"""Products and convolutions of bytes whose weights are computed: a kernel that packs them, and one that multiplies.

Both take the likely best candidate, so that one reads what the other writes: that of the greatest sizes, where only a
run knows the rows.
"""

from __future__ import annotations

from dataclasses import replace

from kernels.kernel import Kernel
from kernels.size import bound
from kernels.target import Target
from kernels.templates.quantized import build as bytewise
from kernels.templates.quantized import product as products
from kernels.templates.quantized.build import Bytewise
from kernels.templates.quantized.packing import TilePacking
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QuantizedProduct
from kernels.templates.quantized.repack import build_repack, in_order
from kernels.templates.template import only


def _product(product: QuantizedProduct, target: Target, name: str) -> Kernel:
    return products.build(product, _likely(product, target), target, name)


def _repacked_product(product: QuantizedProduct, target: Target, name: str) -> Kernel:
    return products.repacking(product, _likely(product, target), target, name)


def _likely(product: QuantizedProduct, target: Target) -> Bytewise:
    greatest = replace(product, rows=bound(product.rows), batch=bound(product.batch))
    return products.candidates(greatest, target)[0]


def _convolution(problem: QuantizedConvolution, target: Target, name: str) -> Kernel:
    return bytewise.build(problem, bytewise.candidates(problem, target)[0], target, name)


def _repacked(problem: QuantizedConvolution, target: Target, name: str) -> Kernel:
    candidate = bytewise.candidates(problem, target)[0]
    packing = TilePacking(problem, candidate.arithmetic, target.lanes(), candidate.vectors)
    return build_repack(packing, in_order(packing), target, name)


COMPUTED_PRODUCT = replace(only("quantized_product", QuantizedProduct, _product), variant="computed")
REPACKED_PRODUCT = only("repack_product", QuantizedProduct, _repacked_product)
COMPUTED_WEIGHTS = replace(only("quantized", QuantizedConvolution, _convolution), variant="computed")
REPACKED_WEIGHTS = only("repack", QuantizedConvolution, _repacked)
