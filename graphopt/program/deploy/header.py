"""The C header of a program: the types, the functions, and what its tensors are."""

from __future__ import annotations

from kernels.emit.description import Description, Tensor
from kernels.emit.refusal import CODES
from kernels.emit.types import CODES as TYPES

_TEXT = """\
/* Program '@P@', compiled for @CPU@ (@TRIPLE@). Generated: do not edit.
 *
@TENSORS@
 *
 * It needs @ARENA@ bytes for intermediate results, @SCRATCH@ of scratch and @WEIGHTS@ of weights, all taken when a
 * model is created: a run allocates nothing. One model runs one call at a time; create one for each thread. A call of a
 * model that runs already returns @G@_MODEL_BUSY at once.
@THREADS@
 *
 * Subnormal numbers count as zero, or are right. A run sets the thread's control word of floating-point arithmetic
 * (nearest, no traps, flush to zero) and restores the caller's before it returns.
 */
#ifndef @G@_H
#define @G@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct @P@_model @P@_model;

/* What the functions return; @P@_error has a sentence that says more, but for @G@_MODEL_BUSY. */
enum {
@CODES@
};

/* Types of elements; the numbers are those of ONNX. */
enum {
@TYPES@
};

/* A tensor in the caller's memory: dense, row-major, its data at a multiple of its element's size. */
typedef struct {
    const char *name;
    int32_t dtype;
    int32_t rank;
    const int64_t *dims;
    void *data;
} @P@_tensor;

/* The program's inputs, outputs and memory, as JSON. */
const char *@P@_describe(void);

/* A model from the file '@P@.weights', whose content is checked. Weights of 2 MiB and more are read into huge pages.
 * After an error, too, there may be a model, which has its text and wants to be destroyed. */
int @P@_create(@P@_model **model, const char *weights_path);

/* The same, with the weights left in the mapped file: processes share one copy, and runs may be slower, by how much
 * depends on the file system. The file must not change while the model lives. */
int @P@_create_mapped(@P@_model **model, const char *weights_path);

/* The same, from the file's content in memory, at a multiple of 64 bytes; it belongs to the caller and must outlive the
 * model. */
int @P@_create_from(@P@_model **model, const void *weights, size_t bytes);

/* What a model is made with; zeros stand for what is usual. */
typedef struct {
    const char *weights_path; /* the weights' file, or null */
    const void *weights;      /* its content, where there is no path */
    size_t weights_bytes;
    void *pool;      /* @P@_pool of a model whose threads this one uses; null: those of this library */
    int32_t threads; /* that run the model, the caller's included; 0: as many as it may use processors */
    int32_t pinned;  /* 1: threads that are started for it stay on one processor each */
    int32_t mapped;  /* 1: the weights stay in the mapped file */
} @P@_options;

/* The same, as the options say. */
int @P@_create_with(@P@_model **model, const @P@_options *options);

/* The threads that a model runs with, for another model's options, also one of another library of this version. That
 * model ends before this library is unloaded. Null where one thread runs the model. */
void *@P@_pool(const @P@_model *model);

/* Run. All inputs and outputs must be given, in any order; names, types, dims and data are checked.
 * No output may share memory with an input or another output. */
int @P@_run(@P@_model *model, const @P@_tensor *inputs, size_t input_count,
    const @P@_tensor *outputs, size_t output_count);

/* Run without checks of the tensors: the data of all inputs and of all outputs, in the order above. The result is
 * @G@_OK or @G@_MODEL_BUSY. */
int @P@_run_raw(@P@_model *model, const void *const *inputs, void *const *outputs);

/* In a child process after fork: a call that another thread of the parent was in does not run here, so the model is
 * free. */
void @P@_after_fork(@P@_model *model);

/* What the last error of a model was; the text is overwritten by the next one. */
const char *@P@_error(const @P@_model *model);

/* Give everything back; null is allowed. */
void @P@_destroy(@P@_model *model);

#ifdef __cplusplus
}
#endif

#endif
"""


def header(program: Description) -> str:
    """The text of the header."""
    prefix = program.name.upper()
    known = {
        "P": program.name, "G": prefix, "CPU": program.cpu, "TRIPLE": program.triple,
        "ARENA": f"{program.arena_bytes:,}", "SCRATCH": f"{program.scratch_bytes:,}",
        "WEIGHTS": f"{program.weights_bytes:,}", "THREADS": _threads(program),
        "TENSORS": "\n".join(_lines("input", program.inputs) + _lines("output", program.outputs)),
        "CODES": "\n".join(f"    {prefix}_{name} = {code}, /* {meaning} */" for name, code, meaning in CODES),
        "TYPES": "\n".join(f"    {prefix}_{dtype.name} = {code}," for dtype, code in TYPES.items()),
    }  # fmt: skip
    return filled(_TEXT, known)


def _threads(program: Description) -> str:
    if program.shared_arena_bytes is None:
        return " *\n * One thread runs a model, the caller's."
    return f"""\
 *
 * Threads of a pool help with a run, which gives the same bits for any number of them. A model then takes
 * {program.shared_arena_bytes:,} bytes for intermediate results, and scratch for each thread. Where another model uses
 * the pool at the moment, and in a child process after fork, the caller runs alone."""


def filled(template: str, known: dict[str, str]) -> str:
    """A template with @NAME@ replaced."""
    for name, text in known.items():
        template = template.replace(f"@{name}@", text)
    return template


def _lines(word: str, tensors: tuple[Tensor, ...]) -> list[str]:
    return [
        f" * {word} {number}: {quoted(one.name)} {one.dtype} {list(one.shape)}".replace("*/", "* /")
        for number, one in enumerate(tensors)
    ]


def quoted(name: str) -> str:
    """A C string; bytes that are not plain ASCII as octal numbers."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in name.encode())
    return '"' + "".join(plain) + '"'
