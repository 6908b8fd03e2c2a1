"""A decoder's step with keys and values in place: from Python, from C, and what is refused."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import BundleError, OptionError
from graphopt.program.deploy.compiled import Compiled
from models.families import cached_decoder
from tests import support
from tests.program.deploy.test_c_example import WARNINGS

MOST, TOKENS = 15, 12
PASTS = [f"past_{kind}_{layer}" for layer in range(cached_decoder.LAYERS) for kind in ("key", "value")]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return cached_decoder.build(3)


@pytest.fixture(scope="module")
def step(model: onnx.ModelProto) -> Compiled:
    return graphopt.compile(model, dims={"batch": 1, "seq": 1, "past": (0, MOST)}, caches=True, name="decoder")


def empty() -> dict[str, np.ndarray]:
    return {name: np.zeros((1, cached_decoder.HEADS, 0, cached_decoder.HEAD), np.float32) for name in PASTS}


@pytest.fixture(scope="module")
def expected(model: onnx.ModelProto) -> list[int]:
    """Greedy tokens of ONNX Runtime."""
    session = support.session(model, optimized=True)
    names, token, found, caches = [one.name for one in session.get_outputs()], 7, [], empty()
    for _ in range(TOKENS):
        made = dict(zip(names, session.run(None, {"input_ids": np.array([[token]]), **caches}), strict=True))
        token = int(made["logits"][0, -1].argmax())
        caches = {name: made[name.replace("past", "present")] for name in PASTS}
        found.append(token)
    return found


def test_a_returned_cache_is_fed_again_as_it_is(step: Compiled, expected: list[int]) -> None:
    token, found, caches, memory = 7, [], empty(), None
    for length in range(1, TOKENS + 1):
        made = step(input_ids=np.array([[token]]), **caches)
        token = int(made["logits"][0, -1].argmax())
        found.append(token)
        caches = {name: made[name.replace("past", "present")] for name in PASTS}
        first = caches[PASTS[0]]
        assert first.shape == (1, cached_decoder.HEADS, length, cached_decoder.HEAD)
        assert memory is None or first.ctypes.data == memory, "it stays where it is"
        memory = first.ctypes.data
    assert found == expected


def test_a_prompt_in_one_call_and_then_step_by_step(model: onnx.ModelProto) -> None:
    step = graphopt.compile(model, dims={"batch": 1, "seq": (1, 6), "past": (0, MOST)}, caches=True)
    session = support.session(model, optimized=True)
    names, caches, theirs = [one.name for one in session.get_outputs()], empty(), empty()
    memory = None
    for tokens in ([5, 9, 2, 7, 7, 1], [3], [4, 4], [8]):
        ids = np.array([tokens])
        made = step(input_ids=ids, **caches)
        wanted = dict(zip(names, session.run(None, {"input_ids": ids, **theirs}), strict=True))
        for name in names:
            np.testing.assert_allclose(made[name], wanted[name], rtol=1e-4, atol=1e-5)
        caches, theirs = ({name: one[name.replace("past", "present")] for name in PASTS} for one in (made, wanted))
        assert memory in (None, caches[PASTS[0]].ctypes.data), "it stays where it is"
        memory = caches[PASTS[0]].ctypes.data


def test_rows_that_lie_elsewhere_are_copied_once(step: Compiled) -> None:
    generator = np.random.default_rng(0)
    rows = {name: generator.standard_normal((1, 3, 5, 32)).astype(np.float32) for name in PASTS}
    before = {name: array.copy() for name, array in rows.items()}
    made = step(input_ids=np.array([[9]]), **rows)
    for name, array in rows.items():
        np.testing.assert_array_equal(array, before[name], "the caller's own")
        np.testing.assert_array_equal(made[name.replace("past", "present")][:, :, :5], array)
    again = step(input_ids=np.array([[9]]), **{name: array[:, :, ::-1][:, :, ::-1] for name, array in rows.items()})
    np.testing.assert_array_equal(again["logits"], made["logits"])


def test_more_rows_than_there_is_room_for_are_refused(step: Compiled) -> None:
    rows = {name: np.zeros((1, 3, MOST + 1, 32), np.float32) for name in PASTS}
    with pytest.raises(BundleError, match=f"'past' cannot be {MOST + 1}; the program is made for 0 to {MOST}"):
        step(input_ids=np.array([[9]]), **rows)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_the_example_decodes_from_c(step: Compiled, expected: list[int], tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    step.save(folder)
    assert not (folder / "example.cc").exists(), "only what shows the steps"
    goal = tmp_path / "decode"
    words = ["cc", "-O2", "-std=c11", *WARNINGS, str(folder / "example.c"), "-o", str(goal), f"-I{folder}"]
    subprocess.run([*words, f"-L{folder}", "-ldecoder", "-lm", f"-Wl,-rpath,{folder}"], check=True)
    done = subprocess.run(
        [str(goal), str(folder / "decoder.weights"), "7", str(TOKENS)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == expected


def test_a_step_allocates_nothing_and_its_memory_is_proved(step: Compiled, tmp_path: Path) -> None:
    step.save(tmp_path / "bundle")
    found = graphopt.certify(tmp_path / "bundle", feeds=1)  # raises where it does not hold
    assert found.runs == len(step.linked.listing.runs)
    assert not {"malloc", "calloc", "memcpy", "memmove"} & set(found.outside)


def test_an_output_elsewhere_than_its_cache_is_refused_in_c(step: Compiled, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    step.save(folder)
    library = ctypes.CDLL(str(folder / "libdecoder.so"))
    library.decoder_error.restype = ctypes.c_char_p

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
            ("dims", ctypes.c_void_p), ("data", ctypes.c_void_p),
        )  # fmt: skip

    model = ctypes.c_void_p()
    assert library.decoder_create(ctypes.byref(model), str(folder / "decoder.weights").encode()) == 0
    program, kept = step.program, []

    def tensors(some: tuple[object, ...]) -> ctypes.Array[Tensor]:
        found = (Tensor * len(some))()
        for place, one in zip(found, some, strict=True):
            dims = (ctypes.c_int64 * len(one.shape))(*one.shape)  # type: ignore[attr-defined]
            memory = np.zeros(4096, np.int64)
            kept.extend([dims, memory])
            place.name, place.rank, place.dims = one.name.encode(), len(one.shape), ctypes.addressof(dims)  # type: ignore[attr-defined]
            place.dtype = 7 if one.type == "i64" else 1  # type: ignore[attr-defined]
            place.data = memory.ctypes.data
        return found

    given, made = tensors(program.inputs), tensors(program.outputs)
    code = library.decoder_run(model, given, len(given), made, len(made))
    text = library.decoder_error(model).decode()
    library.decoder_destroy(model)
    assert code != 0 and text == "output 'present_key_0' lies in the memory of input 'past_key_0'."


def test_a_model_without_caches_has_none() -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(OptionError, match="no output begins with the rows of an input"):
        graphopt.compile(model, dims={"n": (1, 8)}, caches=True)
    with pytest.raises(OptionError, match=r"give their length a range, past=0\.\.511 for example"):
        graphopt.compile(model, dims={"n": 4}, caches=True)
