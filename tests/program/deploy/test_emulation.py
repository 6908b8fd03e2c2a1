"""What is handed to an emulator and read back, with a stand-in that computes the answer itself.

The stand-in is Python: the "program" is a script that knows where a `Standalone` has its pieces.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from graphopt.errors import BundleError
from graphopt.program.deploy import emulation
from graphopt.program.deploy.emulation import Emulated
from kernels.emit.standalone import standalone
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.target import aarch64, x86_64_v3
from tests.kernels.listings import difference, perceptron

SUBTRACT = """
import sys
import numpy as np
read = sys.stdin.buffer.read()
assert len(read) == {read_bytes}
left, right = (np.frombuffer(read, "f4", 15, start) for start in {inputs})
written = bytearray({written_bytes})
written[{outputs[0]}:{outputs[0]} + 60] = (left - right).tobytes()
sys.stdout.buffer.write(written)
"""
FIRST_WEIGHTS = """
import sys
read = sys.stdin.buffer.read()
written = bytearray({written_bytes})
written[{outputs[0]}:{outputs[0]} + 40] = read[{weights}:{weights} + 40]
sys.stdout.buffer.write(written)
"""


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.shutil, "which", lambda name: sys.executable if name == "qemu-aarch64" else None)


def _stand_in(monkeypatch: pytest.MonkeyPatch, listing: Listing, script: str) -> None:
    made = standalone(listing, aarch64())
    text = script.format(**{name: getattr(made, name) for name in ("weights", "inputs", "read_bytes", "outputs",
                                                                    "written_bytes")})  # fmt: skip
    monkeypatch.setattr(emulation, "link_program", lambda objects, target: text.encode())


@pytest.mark.usefixtures("emulator")
def test_inputs_and_outputs_lie_where_the_program_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = difference(aarch64())
    _stand_in(monkeypatch, listing, SUBTRACT)
    left, right = (np.arange(15, dtype=np.float32).reshape(3, 5) ** power for power in (2, 1))
    program = Emulated(listing, b"", aarch64())
    (found,) = program.run(None, {"left": left, "right": right})
    np.testing.assert_array_equal(found, left - right)
    (named,) = program.run(["delta"], {"right": right, "left": left})
    np.testing.assert_array_equal(named, left - right)
    assert program.run([], {"left": left, "right": right}) == []


@pytest.mark.usefixtures("emulator")
def test_weights_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = perceptron(aarch64())
    _stand_in(monkeypatch, layers.listing, FIRST_WEIGHTS)
    (found,) = Emulated(layers.listing, layers.weights, aarch64()).run(None, {"x": np.ones((1, 16), np.float32)})
    np.testing.assert_array_equal(found.reshape(-1), np.frombuffer(layers.weights, np.float32, 10))


@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("script", ["import sys; sys.exit(3)", "print('short')"])
def test_a_program_that_ends_otherwise_is_refused(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = difference(aarch64())
    monkeypatch.setattr(emulation, "link_program", lambda objects, target: script.encode())
    zeros = np.zeros((3, 5), np.float32)
    with pytest.raises(BundleError, match=f"failed in '{sys.executable}': code {3 if 'exit' in script else 0}"):
        Emulated(listing, b"", aarch64()).run(None, {"left": zeros, "right": zeros})


@pytest.mark.usefixtures("emulator")
def test_what_is_not_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match="no emulator of it is installed"):
        Emulated(difference(x86_64_v3()), b"", x86_64_v3())
    layers = perceptron(aarch64())
    flops = sum(kernel.flops for kernel in layers.listing.kernels)
    monkeypatch.setattr(emulation, "MOST_FLOPS", flops - 1)
    with pytest.raises(BundleError, match=f"a run takes {flops:,} operations, more than an emulator is asked for"):
        Emulated(layers.listing, layers.weights, aarch64())
    monkeypatch.setattr(emulation, "MOST_FLOPS", flops)
    monkeypatch.setattr(emulation, "link_program", lambda objects, target: b"")
    Emulated(layers.listing, layers.weights, aarch64())
    with pytest.raises(BundleError, match=r"it cannot be emulated: .* bytes of weights, not 3"):
        Emulated(layers.listing, b"abc", aarch64())

    def fails(objects: object, target: object) -> bytes:
        raise KernelsError("there is no linker")

    monkeypatch.setattr(emulation, "link_program", fails)
    with pytest.raises(BundleError, match="it cannot be emulated: there is no linker"):
        Emulated(layers.listing, layers.weights, aarch64())


def test_without_an_emulator_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.shutil, "which", lambda name: None)
    with pytest.raises(BundleError, match="no emulator of it is installed"):
        Emulated(replace(difference(aarch64()), name="d"), b"", aarch64())
