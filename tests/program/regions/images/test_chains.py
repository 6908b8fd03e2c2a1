"""Chains of convolutions of any rank as regions: what each reads of the others, and where."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.target import Target, host, x86_64_v3
from tests.convolution_chains import chains
from tests.program.regions.running import compare

TOLERANCE = 3e-4  # Winograd's transforms, of up to four layers of sums of up to 8,000 products


@pytest.mark.filterwarnings("ignore")
@given(model=chains(), target=st.sampled_from((host(), host(), x86_64_v3())))
@settings(deadline=None, max_examples=40)
def test_any_chain_is_what_onnx_runtime_says(model: onnx.ModelProto, target: Target) -> None:
    compare(model, tolerance=TOLERANCE, target=target)
