"""A bundle from C, with no Python in the process: the example, the header, and that a run allocates nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.session import Program
from kernels.target import host
from tests import support
from tests.kernels.listings import Written, difference, perceptron

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) is installed")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")


@pytest.fixture(scope="module")
def written() -> Written:
    return perceptron(host(), rows=2)


@pytest.fixture(scope="module")
def folder(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("c") / "mlp"
    write_bundle(found, written.listing, written.weights, host())
    return found


def compiled(source: Path, bundle: Path, goal: Path, name: str = "mlp") -> Path:
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-O2", "-std=c11", *WARNINGS, str(source), "-o", str(goal), f"-I{bundle}", f"-L{bundle}",
         f"-l{name}", "-lm", f"-Wl,-rpath,{bundle}"],
        check=True,
    )  # fmt: skip
    return goal


def run(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *map(str, words)], capture_output=True, text=True, check=False, env={}, timeout=600
    )


@pytest.fixture(scope="module")
def example(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(folder / "example.c", folder, tmp_path_factory.mktemp("example") / "example")


def test_the_example_prints_what_python_gets(written: Written, folder: Path, example: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)
    x.tofile(tmp_path / "x.raw")
    done = run(example, folder / "mlp.weights", tmp_path / "x.raw", tmp_path / "y.raw")
    y = Program(written.listing, written.weights)(x=x)["y"]
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.fromfile(tmp_path / "y.raw", np.float32).reshape(2, 10), y)
    name, *numbers = done.stdout.split()
    assert name == "y:" and np.array_equal(np.array(numbers, np.float32), y[0, :8])


def test_the_example_says_what_is_wrong(folder: Path, example: Path, tmp_path: Path) -> None:
    (tmp_path / "short.raw").write_bytes(b"1234")
    (tmp_path / "bad.weights").write_bytes(bytes(4287))
    for words, message in (
        ((), "usage: "),
        ((tmp_path / "none", "x"), f"weights file '{tmp_path / 'none'}' cannot be opened: No such file or directory."),
        ((tmp_path / "bad.weights", "x"), "has 4287 bytes instead of 4288: it is cut off, or another program's."),
        ((folder / "mlp.weights", tmp_path / "short.raw"), "short.raw' is no file of 128 bytes"),
    ):
        done = run(example, *words)
        assert done.returncode == 1 and message in done.stderr


@pytest.mark.parametrize("name", ["main", "inputs", "double", "show", "model"])
def test_any_name_makes_a_valid_example(name: str, tmp_path: Path) -> None:
    """C's own words and the example's are allowed as names of a program, and so is any text as a tensor's."""
    listing = difference(host())
    inputs = (replace(listing.inputs[0], name='le"ft\\%s*/'), replace(listing.inputs[1], name="größe ??/"))
    write_bundle(tmp_path / "b", replace(listing, name=name, inputs=inputs), b"", host())
    program = compiled(tmp_path / "b" / "example.c", tmp_path / "b", tmp_path / "example", name)
    for number in (1, 2):
        np.full((3, 5), 10**number, np.float32).tofile(tmp_path / f"{number}.raw")
    done = run(program, tmp_path / "b" / f"{name}.weights", tmp_path / "1.raw", tmp_path / "2.raw")
    assert done.stdout == "delta:" + " -90" * 8 + "\n", done.stderr


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler (c++) is installed")
def test_the_header_is_also_cpp(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "use.cc"
    source.write_text('#include "mlp.h"\n#include "mlp.h"\nint main() { return mlp_describe() == 0; }\n')
    subprocess.run(
        ["c++", *WARNINGS, str(source), "-o", str(tmp_path / "use"), f"-I{folder}", f"-L{folder}", "-lmlp",
         f"-Wl,-rpath,{folder}"],
        check=True,
    )  # fmt: skip
    assert run(tmp_path / "use").returncode == 0


# The program's own malloc stands in for the C library's in the whole process, the bundle's library included. In the
# strict mode of seccomp the kernel ends a process at any system call but read, write and exit, so a run that takes
# memory from the system, sleeps on a lock or opens a file does not come back.
_QUIET = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/seccomp.h>
#include "mlp.h"

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long taken;
void *malloc(size_t size) { taken++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { taken++; return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { taken++; return __libc_realloc(old, size); }

int main(int count, char **words) {
    static float x[32], y[20], z[20];
    static const int64_t dims_x[] = {2, 16}, dims_y[] = {2, 10};
    const mlp_tensor in = {"x", MLP_F32, 2, dims_x, x}, out = {"y", MLP_F32, 2, dims_y, y};
    const mlp_tensor wrong = {"q", MLP_F32, 2, dims_x, x};
    const void *given[] = {x};
    void *made[] = {z};
    mlp_model *model;
    for (int i = 0; i < 32; i++) x[i] = (float)i;
    /* several wake one another by the system */
    mlp_options options = {.bytes = sizeof options, .weights_path = words[1], .threads = 1};
    if (count != 3 || mlp_create_with(&model, &options) != MLP_OK || taken == 0) return 3;
    int expected = atoi(words[2]);
    if (expected && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0) return 77;
    taken = 0;
    int code = 0;
    for (int i = 0; i < 100; i++) {
        code |= mlp_run(model, &in, 1, &out, 1);
        code |= mlp_run_raw(model, given, made);
    }
    if (taken) code = 4;
    if (memcmp(y, z, sizeof y)) code = 5;
    if (expected && mlp_run(model, &wrong, 1, &out, 1) != MLP_BAD_ARGUMENT) code = 6;
    if (expected == 2) { void *more = malloc(1 << 24); memset(more, 1, 1 << 24); y[0] = ((char *)more)[5]; }
    if (!expected) return code;
    syscall(SYS_exit, code);
}
"""


@pytest.fixture(scope="module")
def quiet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.confstr("CS_GNU_LIBC_VERSION") is None:
        pytest.skip("the C library is not glibc, whose malloc the test replaces")
    source = tmp_path_factory.mktemp("quiet") / "quiet.c"
    source.write_text(_QUIET)
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-O2", "-Wall", "-Werror", str(source), "-o", str(source.parent / "quiet"), f"-I{folder}",
         f"-L{folder}", "-lmlp", f"-Wl,-rpath,{folder}"],
        check=True,
    )  # fmt: skip
    return source.parent / "quiet"


def test_a_run_takes_no_memory_from_the_c_library(folder: Path, quiet: Path) -> None:
    assert run(quiet, folder / "mlp.weights", 0).returncode == 0


def test_a_run_and_a_refusal_make_no_system_call(folder: Path, quiet: Path) -> None:
    done = run(quiet, folder / "mlp.weights", 1)
    if done.returncode == 77:
        pytest.skip("seccomp is not available")
    assert done.returncode == 0
    assert run(quiet, folder / "mlp.weights", 2).returncode == -9, "a program that asks for memory is ended"


def test_the_example_asks_for_dims_that_data_decides(tmp_path: Path) -> None:
    text = "g (float[4,5] x) => (int64[2,n] y, float[m] u) { y = NonZero(x) u = Unique(x) }"
    graphopt.compile(support.model(text)).save(tmp_path / "bundle")
    x = np.zeros((4, 5), np.float32)
    x[1, 2], x[2, 4] = 3, -1
    x.tofile(tmp_path / "x.raw")
    program = compiled(tmp_path / "bundle" / "example.c", tmp_path / "bundle", tmp_path / "example", "model")
    names = ("x.raw", "y.raw", "u.raw")
    done = run(program, tmp_path / "bundle" / "model.weights", *(tmp_path / name for name in names))
    assert done.stdout == "y: 1 2 2 4\nu: -1 0 3\n"
    assert np.fromfile(tmp_path / "y.raw", np.int64).tolist() == [1, 2, 2, 4]
