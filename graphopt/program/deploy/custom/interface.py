"""Names and positions in ONNX Runtime's C interface, as its public header has them.

`OrtApi` is a table of functions, which grows at its end from version to version, and so is `OrtCustomOp`: what stands
here holds for every version from `API_VERSION` on. `tests/program/deploy/custom` holds it to the installed library.
"""

from __future__ import annotations

from collections.abc import Mapping

API_VERSION = 24  # of ORT_API_VERSION: the first with GetTensorElementTypeAndShapeDataReference
POINTER = 8  # bytes

# Positions in OrtApi. Every function of it gives an OrtStatus, null for none, but CreateStatus and the Release ones.
ENTRIES: Mapping[str, int] = {
    "CreateStatus": 0,
    "CreateCustomOpDomain": 26,
    "CustomOpDomain_Add": 27,
    "AddCustomOpDomain": 28,
    "GetTensorMutableData": 51,
    "KernelInfoGetAttribute_int64": 86,
    "KernelInfoGetAttribute_string": 87,
    "KernelContext_GetInput": 90,
    "KernelContext_GetOutput": 91,
    "ReleaseStatus": 93,
    "ReleaseCustomOpDomain": 101,
    "GetTensorElementTypeAndShapeDataReference": 414,
}

# Positions in OrtApiBase.
GET_API, GET_VERSION_STRING = 0, 1

# The functions of OrtCustomOp, behind its version, in their order.
OPERATOR = (
    "CreateKernel", "GetName", "GetExecutionProviderType", "GetInputType", "GetInputTypeCount", "GetOutputType",
    "GetOutputTypeCount", "KernelCompute", "KernelDestroy", "GetInputCharacteristic", "GetOutputCharacteristic",
    "GetInputMemoryType", "GetVariadicInputMinArity", "GetVariadicInputHomogeneity", "GetVariadicOutputMinArity",
    "GetVariadicOutputHomogeneity", "CreateKernelV2", "KernelComputeV2", "InferOutputShapeFn", "GetStartVersion",
    "GetEndVersion", "GetMayInplace", "ReleaseMayInplace", "GetAliasMap", "ReleaseAliasMap",
)  # fmt: skip
OPERATOR_BYTES = POINTER * (1 + len(OPERATOR))

FAIL, INVALID_ARGUMENT, NO_SUCHFILE = 1, 2, 3  # of OrtErrorCode
