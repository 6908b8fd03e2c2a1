"""Bundles linked into programs: static libraries of several models, pkg-config's file, examples in C++ and in Rust."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.session import Program
from kernels.target import host
from tests.kernels.listings import Written, difference, perceptron

needs_c = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
needs_cpp = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler (c++) is installed")
needs_rust = pytest.mark.skipif(shutil.which("rustc") is None, reason="no Rust compiler (rustc) is installed")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")
_BOTH = """
#include <stdio.h>
#include "first.h"
#include "second.h"

int main(int count, char **words) {
    float x[16], y[10], z[10];
    const void *given[] = {x};
    void *made[] = {y}, *other[] = {z};
    first_model *first;
    second_model *second;
    for (int i = 0; i < 16; i++) x[i] = (float)i / 16;
    if (count != 3 || first_create(&first, words[1]) || second_create(&second, words[2])) return 1;
    if (first_run_raw(first, given, made) || second_run_raw(second, given, other)) return 2;
    for (int i = 0; i < 10; i++) printf("%.9g %.9g\\n", y[i], z[i]);
    puts(first_version());
    first_destroy(first);
    second_destroy(second);
    return 0;
}
"""


def built(*words: object) -> None:
    done = subprocess.run([str(one) for one in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in words], capture_output=True, text=True, check=False, timeout=600)


@needs_c
def test_two_static_libraries_are_linked_into_one_program(tmp_path: Path) -> None:
    """Both have kernels of the same names, a pool, and functions that the interface shares."""
    written = [perceptron(host()), perceptron(host(), seed=5)]
    for name, one in zip(("first", "second"), written, strict=True):
        write_bundle(tmp_path / name, replace(one.listing, name=name), one.weights, host(), digest="ab" * 32)
    (tmp_path / "main.c").write_text(_BOTH)
    built(
        "cc", "-O2", *WARNINGS, tmp_path / "main.c", "-o", tmp_path / "main",
        *(f"-I{tmp_path / one}" for one in ("first", "second")),
        tmp_path / "first" / "libfirst.a", tmp_path / "second" / "libsecond.a", "-lm",
    )  # fmt: skip
    weights = [tmp_path / one / f"{one}.weights" for one in ("first", "second")]
    done = run(tmp_path / "main", *weights)
    assert done.returncode == 0
    *lines, version = done.stdout.splitlines()
    assert f'"abi":1,"model":"{"ab" * 32}"' in version
    x = np.arange(16, dtype=np.float32)[None] / 16
    answers = [Program(one.listing, one.weights)(x=x)["y"][0] for one in written]
    assert np.array_equal(np.array([line.split() for line in lines], np.float32).T, answers)


@needs_c
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config_says_how_to_link(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", difference(host()), b"", host())
    done = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "difference"], capture_output=True, text=True, check=True,
        env=os.environ | {"PKG_CONFIG_PATH": str(tmp_path / "b")},
    )  # fmt: skip
    built("cc", tmp_path / "b" / "example.c", "-o", tmp_path / "example", *done.stdout.split())
    for number in (1, 2):
        np.full((3, 5), 10**number, np.float32).tofile(tmp_path / f"{number}.raw")
    done = run(tmp_path / "example", tmp_path / "b" / "difference.weights", tmp_path / "1.raw", tmp_path / "2.raw")
    assert done.stdout == "delta:" + " -90" * 8 + "\n"


@pytest.fixture(scope="module")
def written() -> Written:
    return perceptron(host(), rows=2)


def _bundle(written: Written, folder: Path, name: str) -> Path:
    """With names that have to be escaped."""
    inputs = (replace(written.listing.inputs[0], name='le"ft\\%s*/ größe ??/'),)
    write_bundle(folder, replace(written.listing, name=name, inputs=inputs), written.weights, host())
    return folder


def _assert_runs(example: Path, written: Written, weights: Path, folder: Path) -> None:
    x = np.random.default_rng(3).standard_normal((2, 16)).astype(np.float32)
    x.tofile(folder / "x.raw")
    (folder / "short.raw").write_bytes(b"1234")
    done = run(example, weights, folder / "x.raw", folder / "y.raw")
    assert done.stdout == "y: 80 bytes\n", done.stderr
    y = Program(written.listing, written.weights)(x=x)["y"]
    assert np.array_equal(np.fromfile(folder / "y.raw", np.float32).reshape(2, 10), y)
    for words, message in (
        ((), "usage: "),
        ((folder / "none", folder / "x.raw"), "none' cannot be opened: No such file or directory."),
        ((weights, folder / "short.raw"), "short.raw' is no file of 128 bytes"),
    ):
        done = run(example, *words)
        assert done.returncode == 1 and message in done.stderr


@needs_cpp
@pytest.mark.parametrize("name", ["mlp", "example", "std"])
def test_the_example_in_cpp(written: Written, tmp_path: Path, name: str) -> None:
    folder = _bundle(written, tmp_path / "b", name)
    built(
        "c++", "-std=c++17", *WARNINGS, folder / "example.cc", "-o", tmp_path / "example", f"-L{folder}", f"-l{name}",
        "-lm", f"-Wl,-rpath,{folder}",
    )  # fmt: skip
    _assert_runs(tmp_path / "example", written, folder / f"{name}.weights", tmp_path)


@needs_rust
def test_the_example_in_rust(written: Written, tmp_path: Path) -> None:
    folder = _bundle(written, tmp_path / "b", "mlp")
    built(
        "rustc", "-D", "warnings", folder / "example.rs", "-o", tmp_path / "example", "-L", folder, "-l", "mlp",
        "-C", f"link-arg=-Wl,-rpath,{folder}",
    )  # fmt: skip
    _assert_runs(tmp_path / "example", written, folder / "mlp.weights", tmp_path)
