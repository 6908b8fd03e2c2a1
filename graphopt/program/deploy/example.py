"""A C program that runs a bundle: an example to read, and a check that no Python is needed."""

from __future__ import annotations

from math import prod

from graphopt.program.deploy.header import filled, quoted
from kernels.dtype import DType
from kernels.emit.description import Description, Tensor
from kernels.emit.types import CODES

_BYTES = {code: dtype.bytes for dtype, code in CODES.items()}

_TEXT = """\
/* Runs program '@P@' on raw files and prints the first elements of its outputs. Generated.
 *
 *     cc -O2 example.c -o example -L. -l@P@ -lm -Wl,-rpath,'$ORIGIN'
 *     ./example @P@.weights @ARGUMENTS@
 *
 * An input's file holds its elements, dense and row-major; files after the inputs receive the outputs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "@P@.h"

enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@, SHOWN = 8 };

@DIMS@
static @P@_tensor inputs[INPUTS + 1] = {
@INPUT_ROWS@
    {0}};
static @P@_tensor outputs[OUTPUTS + 1] = {
@OUTPUT_ROWS@
    {0}};
static const size_t input_bytes[INPUTS + 1] = {@INPUT_BYTES@0};
static const size_t output_bytes[OUTPUTS + 1] = {@OUTPUT_BYTES@0};
static const size_t output_elements[OUTPUTS + 1] = {@OUTPUT_ELEMENTS@0};

static void show(int32_t dtype, const void *data, size_t i) {
    switch (dtype) {
    case @G@_F32: printf(" %.9g", ((const float *)data)[i]); break;
    case @G@_F64: printf(" %.17g", ((const double *)data)[i]); break;
    case @G@_I64: printf(" %" PRId64, ((const int64_t *)data)[i]); break;
    case @G@_U64: printf(" %" PRIu64, ((const uint64_t *)data)[i]); break;
    case @G@_I32: printf(" %" PRId32, ((const int32_t *)data)[i]); break;
    case @G@_U32: printf(" %" PRIu32, ((const uint32_t *)data)[i]); break;
    case @G@_I16: printf(" %d", ((const int16_t *)data)[i]); break;
    case @G@_U16: printf(" %d", ((const uint16_t *)data)[i]); break;
    case @G@_I8: printf(" %d", ((const int8_t *)data)[i]); break;
    case @G@_U8: case @G@_BOOL: printf(" %d", ((const uint8_t *)data)[i]); break;
    default: printf(" 0x%04x", ((const uint16_t *)data)[i]); /* f16 and bf16, for which C has no type */
    }
}

int main(int count, char **words) {
    if (count < 2 + INPUTS || count > 2 + INPUTS + OUTPUTS) {
        fprintf(stderr, "usage: %s WEIGHTS, then %d files of inputs, then up to %d for outputs\\n", words[0], INPUTS,
                OUTPUTS);
        return 1;
    }
    @P@_model *model;
    if (@P@_create(&model, words[1]) != @G@_OK) {
        fprintf(stderr, "%s\\n", @P@_error(model));
        @P@_destroy(model);
        return 1;
    }
    for (int i = 0; i < INPUTS; i++) {
        FILE *file = fopen(words[2 + i], "rb");
        inputs[i].data = malloc(input_bytes[i] + 1);
        if (!file || !inputs[i].data || fread(inputs[i].data, 1, input_bytes[i] + 1, file) != input_bytes[i]) {
            fprintf(stderr, "'%s' is no file of %zu bytes\\n", words[2 + i], input_bytes[i]);
            return 1;
        }
        fclose(file);
    }
    for (int i = 0; i < OUTPUTS; i++) outputs[i].data = malloc(output_bytes[i] + 1);
    if (@P@_run(model, inputs, INPUTS, outputs, OUTPUTS) != @G@_OK) {
        fprintf(stderr, "%s\\n", @P@_error(model));
        @P@_destroy(model);
        return 1;
    }
    for (int i = 0; i < OUTPUTS; i++) {
        printf("%s:", outputs[i].name);
        for (size_t k = 0; k < output_elements[i] && k < SHOWN; k++) show(outputs[i].dtype, outputs[i].data, k);
        printf("\\n");
        if (2 + INPUTS + i < count) {
            FILE *file = fopen(words[2 + INPUTS + i], "wb");
            if (!file || fwrite(outputs[i].data, 1, output_bytes[i], file) != output_bytes[i]) {
                fprintf(stderr, "'%s' cannot be written\\n", words[2 + INPUTS + i]);
                return 1;
            }
            fclose(file);
        }
    }
    @P@_destroy(model);
    return 0;
}
"""


def example(program: Description) -> str:
    """The text of the program."""
    known = {
        "P": program.name,
        "G": program.name.upper(),
        "ARGUMENTS": " ".join(f"input{number}.raw" for number in range(len(program.inputs))),
        "INPUTS": str(len(program.inputs)),
        "OUTPUTS": str(len(program.outputs)),
        "DIMS": _dims("input", program.inputs) + _dims("output", program.outputs),
        "INPUT_ROWS": _rows("input", program, program.inputs),
        "OUTPUT_ROWS": _rows("output", program, program.outputs),
        "INPUT_BYTES": _numbers([prod(one.shape) * _BYTES[one.code] for one in program.inputs]),
        "OUTPUT_BYTES": _numbers([prod(one.shape) * _BYTES[one.code] for one in program.outputs]),
        "OUTPUT_ELEMENTS": _numbers([prod(one.shape) for one in program.outputs]),
    }
    return filled(_TEXT, known)


def _dims(word: str, tensors: tuple[Tensor, ...]) -> str:
    return "".join(
        f"static const int64_t {word}{number}_dims[] = {{{', '.join(map(str, one.shape)) or 0}}};\n"
        for number, one in enumerate(tensors)
    )


def _rows(word: str, program: Description, tensors: tuple[Tensor, ...]) -> str:
    prefix = program.name.upper()
    return "\n".join(
        f"    {{{quoted(one.name)}, {prefix}_{DType(one.dtype).name}, {len(one.shape)}, {word}{number}_dims, NULL}},"
        for number, one in enumerate(tensors)
    )


def _numbers(values: list[int]) -> str:
    return "".join(f"{value}, " for value in values)
