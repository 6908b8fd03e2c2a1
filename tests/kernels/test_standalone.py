"""Programs without libraries for an emulated ARM or RISC-V: what they compute, and what cannot be one."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphopt.program.deploy.emulation import EMULATED
from kernels.emit.standalone import MOST_BYTES, NotStandalone, standalone
from kernels.listing import Listing
from kernels.llvm.link import link_program
from kernels.target import Target, aarch64, riscv64, x86_64_v3
from tests.kernels.arm import emulator, needs_arm
from tests.kernels.listings import difference, perceptron


@needs_arm
@pytest.mark.parametrize("target", (aarch64(), riscv64()), ids=("arm", "riscv"))
def test_layers_through_an_arena_and_several_inputs(target: Target, tmp_path: Path) -> None:
    written = perceptron(target, (16, 300, 10), rows=7)
    x = np.random.default_rng(1).standard_normal((7, 16)).astype(np.float32)
    made = standalone(written.listing, target)
    given = np.zeros(made.read_bytes, np.uint8)
    given[: len(written.weights)] = np.frombuffer(written.weights, np.uint8)
    given[made.inputs[0] : made.inputs[0] + x.nbytes] = x.reshape(-1).view(np.uint8)
    program = tmp_path / "program"
    program.write_bytes(link_program(made.objects(), target))
    program.chmod(0o700)
    name = target.architecture.name
    words = [str(emulator(name)), *EMULATED[name], str(program)]
    done = subprocess.run(words, input=given.tobytes(), capture_output=True, check=True)
    assert len(done.stdout) == made.written_bytes
    y = np.frombuffer(done.stdout, np.float32, 70, made.outputs[0]).reshape(7, 10)
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()
    short = subprocess.run(words, input=given.tobytes()[:-1], capture_output=True, check=False)
    assert short.returncode == 1 and not short.stdout


def test_pieces_lie_one_after_the_other() -> None:
    made = standalone(difference(aarch64()), aarch64())
    assert made.weights == 0 and made.inputs == (0, 64) and made.read_bytes == 128
    assert made.outputs == (0,) and made.written_bytes == 64


def test_without_bytes_nothing_is_read_or_written() -> None:
    """A call for no bytes would look like the end of the input."""
    calls = []
    for listing in (difference(aarch64()), Listing("empty", (), (), (), (), 0, 0)):
        made = standalone(listing, aarch64())
        assert len(made.objects()) == 2 + len(listing.kernels), "a start, what moves memory, and each kernel"
        calls.append("".join(module.text() for module in made.modules).count("call i64 @system_call("))
    assert calls[1] == 1 < calls[0], "which ends it"
    assert (made.read_bytes, made.written_bytes) == (0, 0)


def test_what_cannot_be_such_a_program() -> None:
    with pytest.raises(NotStandalone, match="is written for ARM64 and RISC-V, not for 'x86_64-unknown-linux-gnu'"):
        standalone(difference(x86_64_v3()), x86_64_v3())
    with pytest.raises(NotStandalone, match=f"at most {MOST_BYTES:,} are possible"):
        standalone(replace(difference(aarch64()), arena_bytes=1 << 40), aarch64())
