"""A product by codes of few bits whose rows only the run knows: runs of one row have a template of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.size import is_free
from kernels.target import Target
from kernels.templates.bits import BITS_PRODUCT, BitsProduct
from kernels.templates.bits_dots import BITS_DOTS, fits
from kernels.templates.bits_row import BITS_ROW
from kernels.templates.template import Single, Template


def of_one_row(product: BitsProduct, target: Target) -> Template[Any, Any]:
    """The template of a product of one row: on dot products where these fit."""
    return BITS_DOTS if fits(product, target) else BITS_ROW


def _single(product: BitsProduct, target: Target) -> Single | None:
    if not is_free(product.rows):
        return None
    one = replace(product, rows=1)
    template = of_one_row(one, target)
    vectors = template.candidates(one, target)[0].vectors
    return Single(template, one, product.rows, lambda candidate: candidate.vectors == vectors)


BITS_OF_ANY_ROWS = replace(BITS_PRODUCT, single=_single, variant="any rows")
