"""Two hosts in C: one creates a program of a bundle, one a session of ONNX Runtime; both run it and say what it took.

A host reads inputs from files, runs so many times, writes the outputs of the last run, and prints JSON: nanoseconds of
creation and of each run, and the greatest resident memory of the process (VmHWM).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnxruntime

from bench.ram.disk import compiled
from bench.ram.group import Group
from bench.ram.networks import data_of
from graphopt.program.deploy.example import BYTES, dims
from graphopt.program.deploy.header import filled, quoted
from graphopt.program.deploy.manifest import read_manifest
from kernels.emit.description import Description

RUNTIME = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
API_VERSION = 24
_FRAME = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
@INCLUDES@
enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@, MOST_RUNS = 1000 };
static const size_t input_bytes[INPUTS + 1] = {@INPUT_BYTES@0}, output_bytes[OUTPUTS + 1] = {@OUTPUT_BYTES@0};
static void *inputs[INPUTS + 1], *outputs[OUTPUTS + 1];

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long peak(void) { /* bytes */
    char line[256];
    long long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld kB", &found) == 1) break;
    if (file) fclose(file);
    return 1024 * found;
}

static int failed(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

@MODEL@

/* words: the model's file, threads, runs, "thrifty" or "usual", the beginning of names of outputs, a file an input */
int main(int count, char **words) {
    static long long taken[MOST_RUNS];
    if (count != 6 + INPUTS) return failed("wrong arguments");
    int runs = atoi(words[3]), thrifty = !strcmp(words[4], "thrifty");
    if (runs > MOST_RUNS) return failed("too many runs");
    for (int i = 0; i < INPUTS; i++) {
        FILE *file = fopen(words[6 + i], "rb");
        inputs[i] = aligned_alloc(64, (input_bytes[i] + 64) / 64 * 64);
        if (!file || !inputs[i] || fread(inputs[i], 1, input_bytes[i], file) != input_bytes[i])
            return failed("an input cannot be read");
        fclose(file);
    }
    long long begin = now();
    if (create(words[1], atoi(words[2]), thrifty)) return 1;
    long long created = now() - begin;
    for (int i = 0; i < runs; i++) {
        begin = now();
        if (run()) return 1;
        taken[i] = now() - begin;
    }
    printf("{\"created\": %lld, \"peak\": %lld, \"runs\": [", created, peak());
    for (int i = 0; i < runs; i++) printf("%s%lld", i ? ", " : "", taken[i]);
    printf("]}\n");
    for (int i = 0; i < OUTPUTS; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s%d", words[5], i);
        FILE *file = fopen(name, "wb");
        if (!file || fwrite(outputs[i], 1, output_bytes[i], file) != output_bytes[i])
            return failed("an output cannot be written");
        fclose(file);
    }
    return 0;
}
"""
_OURS = r"""
static @P@_model *model;

static int create(const char *path, int threads, int thrifty) {
    @P@_options options = {sizeof options, path};
    (void)thrifty;
    options.threads = threads;
    for (int i = 0; i < OUTPUTS; i++)
        if (!(outputs[i] = aligned_alloc(64, (output_bytes[i] + 64) / 64 * 64))) return failed("no memory");
    return @P@_create_with(&model, &options) ? failed(@P@_error(model)) : 0;
}

static int run(void) {
    return @P@_run_raw(model, (const void *const *)inputs, outputs) ? failed(@P@_error(model)) : 0;
}
"""
# Positions in OrtApi, as ONNX Runtime's public header has them: they never change.
_THEIRS = r"""
enum {
    ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, NO_PATTERN = 17, NO_ARENA = 19,
    INTRA_THREADS = 24, INTER_THREADS = 25, TENSOR_OF = 49, DATA = 51, MEMORY_INFO = 69, RELEASE_VALUE = 96, ENTRY = 130
};
typedef struct { const void *const *(*api)(uint32_t); const char *(*version)(void); } base;
typedef void *(*three)(void *, void *, void *);
typedef void *(*two)(void *, void *);
extern const base *OrtGetApiBase(void);
static const void *const *api;
static void *session, *values[INPUTS + 1], *results[OUTPUTS + 1];
static const char *input_names[] = {@INPUT_NAMES@0}, *output_names[] = {@OUTPUT_NAMES@0};
@DIMS@static const int64_t *const all_dims[] = {@ALL_DIMS@0};
static const size_t ranks[] = {@RANKS@0};
static const int codes[] = {@CODES@0};

static int refused(void *status) {
    return status ? failed(((const char *(*)(void *))api[ERROR_MESSAGE])(status)) : 0;
}

static int create(const char *path, int threads, int thrifty) {
    void *env, *options, *memory;
    if (!(api = OrtGetApiBase()->api(@API@))) return failed("another ONNX Runtime");
    if (refused(((void *(*)(int, const char *, void **))api[CREATE_ENV])(3, "host", &env))) return 1;
    if (refused(((void *(*)(void **))api[CREATE_OPTIONS])(&options))) return 1;
    if (refused(((void *(*)(void *, int))api[INTRA_THREADS])(options, threads))) return 1;
    if (refused(((void *(*)(void *, int))api[INTER_THREADS])(options, 1))) return 1;
    if (thrifty) {
        if (refused(((void *(*)(void *))api[NO_PATTERN])(options))) return 1;
        if (refused(((void *(*)(void *))api[NO_ARENA])(options))) return 1;
        if (refused(((three)api[ENTRY])(options, "session.disable_prepacking", "1"))) return 1;
    }
    if (refused(((void *(*)(void *, const char *, void *, void **))api[CREATE_SESSION])(env, path, options, &session)))
        return 1;
    if (refused(((void *(*)(int, int, void **))api[MEMORY_INFO])(1, 0, &memory))) return 1;
    for (int i = 0; i < INPUTS; i++)
        if (refused(((void *(*)(void *, void *, size_t, const int64_t *, size_t, int, void **))api[TENSOR_OF])(
                memory, inputs[i], input_bytes[i], all_dims[i], ranks[i], codes[i], &values[i])))
            return 1;
    return 0;
}

static int run(void) {
    for (int i = 0; i < OUTPUTS; i++) {
        if (results[i]) ((void (*)(void *))api[RELEASE_VALUE])(results[i]);
        results[i] = NULL;
    }
    if (refused(((void *(*)(void *, void *, const char **, void **, size_t, const char **, size_t, void **))api[RUN])(
            session, NULL, input_names, values, INPUTS, output_names, OUTPUTS, results)))
        return 1;
    for (int i = 0; i < OUTPUTS; i++)
        if (refused(((two)api[DATA])(results[i], &outputs[i]))) return 1;
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a host said, times in nanoseconds; or why it said nothing."""

    created: float = 0.0
    runs: tuple[float, ...] = ()
    peak: int = 0  # bytes
    outputs: tuple[Path, ...] = ()
    fault: str = ""  # empty where it ran to its end

    @property
    def later(self) -> float:
        """The median of the runs behind the first."""
        ordered = sorted(self.runs[1:] or self.runs)
        return ordered[len(ordered) // 2]


@dataclass(frozen=True, slots=True)
class Host:
    """A compiled host, the file that it creates its model of, and how many outputs it writes."""

    program: Path
    model: Path
    files: tuple[Path, ...]  # what it reads of the model, and a bundle's library
    outputs: int

    def run(
        self, inputs: Sequence[Path], *, threads: int, runs: int, results: Path, inside: Group | None = None,
        thrifty: bool = False, limit: float,
    ) -> Taken:  # fmt: skip
        """Run it, in a group where one is given, for at most `limit` seconds."""
        results.mkdir(parents=True, exist_ok=True)
        way = "thrifty" if thrifty else "usual"
        words = [str(one) for one in (self.program, self.model, threads, runs, way, f"{results}/", *inputs)]
        try:
            done = subprocess.run(
                inside.command(words) if inside else words, capture_output=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return Taken(fault=f"over {limit:.0f} s")
        if done.returncode:
            killed = inside is not None and inside.killed()
            text = done.stderr.decode().strip() or f"ended with {done.returncode}"
            return Taken(fault="killed" if killed else text.splitlines()[-1])
        known = json.loads(done.stdout)
        outputs = tuple(results / str(number) for number in range(self.outputs))
        return Taken(known["created"], tuple(known["runs"]), known["peak"], outputs)


def of_bundle(folder: Path, label: str) -> Host:
    """The host of a bundle; `label` names its program."""
    manifest = read_manifest(folder)
    name = manifest.name
    known = {"INCLUDES": f'#include "{name}.h"', "MODEL": _OURS.replace("@P@", name)}
    program = _host(manifest.program, label, known, f"-I{folder}", f"-L{folder}", f"-l{name}", f"-Wl,-rpath,{folder}")
    weights = folder / f"{name}.weights"
    return Host(program, weights, (weights, folder / f"lib{name}.so"), len(manifest.program.outputs))


def of_runtime(model: Path, program: Description, label: str) -> Host:
    """The host of a session of a model's file, whose inputs and outputs are those of a program."""
    ends = program.inputs
    model_text = filled(_THEIRS, {
        "INPUT_NAMES": "".join(f"{quoted(one.name)}, " for one in ends),
        "OUTPUT_NAMES": "".join(f"{quoted(one.name)}, " for one in program.outputs),
        "DIMS": dims("input", ends), "ALL_DIMS": "".join(f"input{number}_dims, " for number in range(len(ends))),
        "RANKS": "".join(f"{len(one.shape)}, " for one in ends), "CODES": "".join(f"{one.code}, " for one in ends),
        "API": str(API_VERSION),
    })  # fmt: skip
    found = _host(program, label, {"INCLUDES": "", "MODEL": model_text}, str(RUNTIME), "-Wl,-rpath,$ORIGIN")
    link = found.parent / "libonnxruntime.so.1"  # the library's own name, which the wheel's file does not have
    link.unlink(missing_ok=True)
    link.symlink_to(RUNTIME)
    return Host(found, model, (model, data_of(model)), len(program.outputs))


def _host(program: Description, label: str, known: dict[str, str], *words: str) -> Path:
    numbers = {
        "INPUTS": str(len(program.inputs)), "OUTPUTS": str(len(program.outputs)),
        "INPUT_BYTES": "".join(f"{prod(one.shape) * BYTES[one.code]}, " for one in program.inputs),
        "OUTPUT_BYTES": "".join(f"{prod(one.shape) * BYTES[one.code]}, " for one in program.outputs),
    }  # fmt: skip
    return compiled(filled(_FRAME, numbers | known), label, *words)
