"""Sentences that confused five newcomers, each as it is printed today: what is wrong, where, and what to do next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from memplan.compiling import COMPILING
from tests import support
from tests.cli.shell import Shell

ROOT = Path(__file__).parent.parent.parent
DRAW = np.random.default_rng(0)


@dataclass(frozen=True)
class Sentence:
    """A sentence by its number in the list of the newcomers; what it has to say now, and what it says no more."""

    number: int
    source: str  # a command line of graphopt, or a document
    says: tuple[str, ...]
    no_more: tuple[str, ...] = ()


DOCUMENTS = (
    Sentence(1, "README.md", ("checked against the original on sample inputs",), ("equal to the first",)),
    Sentence(2, "README.md", ("3 also rewrites that may change the last digits or help only on some machines",)),
    Sentence(3, "README.md", ("write Transposes around ONNX's operators instead of calls of model-local functions",)),
    Sentence(
        4, "README.md",
        (
            "If an operator has no kernel yet, compile stops and lists it; in Python, graphopt.compile(model) runs "
            "just those in ONNX Runtime",
        ),
        ("no bundle can hold them",),
    ),
    Sentence(5, "README.md", ("how much memory intermediate results (activations) need",), ("between its weights",)),
    # What the newcomers asked for was the truth of their day, that compile cannot write for ARM; now it can.
    Sentence(6, "README.md", ("bundles of compile: x86-64 with AVX2 or AVX-512, and 64-bit ARM by --target aarch64",)),
    Sentence(
        7, "README.md",
        ("no Winograd convolutions: a smaller bundle, closer to ONNX Runtime, sometimes slower",),
        ("leaves out Winograd",),
    ),
    Sentence(48, "docs/memory.md", ("Reported sizes cover temporaries and outputs",), ("Sizes are of an arena",)),
    Sentence(
        49, "docs/memory.md",
        ("The first run of memory, schedule or compile prepares the solvers", "and the command says"),
    ),
)  # fmt: skip
COMMANDS = (
    Sentence(5, "memory --help", ("the memory that MODEL needs for intermediate results (activations)",)),
    Sentence(
        8, "optimize fixed.onnx", ("nodes 2 1 -50%", "nothing was written: add an output file, or --in-place."),
    ),
    Sentence(9, "optimize fixed.onnx", ("time", "s for 1 rewrite,", "s checking"), ("seconds", "passes")),
    Sentence(10, "optimize fixed.onnx", ("for 1 rewrite,",), ("1 passes", "1 rewrites")),
    Sentence(10, "schedule fixed.onnx --device cpu:2", ("tasks 1 region ", "1 launch, 0 waits"), ("1 regions",)),
    Sentence(11, "optimize fixed.onnx", ("allowed: 4e-06 (float32); beyond that",), ("float16", "float64", "integers")),
    Sentence(12, "optimize done.onnx", ("already optimal for this level; nothing was changed",)),
    Sentence(
        13, "optimize stiff.onnx",
        ("at n=4, m=4 only: the original failed at all other sizes that were tried; fix these dims, or give feeds",),
    ),
    Sentence(
        14, "optimize fixed.onnx --verify-seconds 0.000001",
        ("no run of the original succeeded within the 1e-06 s for verification; allow more",),
    ),
    Sentence(
        15, "optimize fixed.onnx o.onnx --dim batch=N",
        ("input x: float[1, 64] -> float[N, 64], as asked", "input x: float[N, 64]"), ("FLOAT", "Nx64"),
    ),
    Sentence(
        16, "optimize fixed.onnx --shape x=2x64",
        ("dim 0 of input 'x' is fixed at 1 in the model, it cannot become 2; free it first: --dim x:0=N.",),
    ),
    Sentence(17, "optimize fixed.onnx --shape xs=2x64", ("there is no input 'xs'; the nearest name is 'x'.",)),
    Sentence(
        18, "optimize fixed.onnx --dim seq=2",
        ("there is no dynamic dim 'seq'; all dims are fixed; --dim batch=N frees the first of each input.",),
    ),
    Sentence(19, "optimize fixed.onnx --dim batch=-1", ("'-1' is neither a size nor a name for a dim.",)),
    Sentence(20, "optimize fixed.onnx --level 7", ("there is no level 7; levels are 0 to 3.",), ("Input should be",)),
    Sentence(
        21, "optimize fixed.onnx --target cuda",
        ("'cuda' is not one of 'standard', 'ort'; 'graphopt optimize --help' lists what there is.",), ("Value error",),
    ),
    Sentence(
        22, "optimize fixed.onnx --memory-budget 10",
        ("the least arena that was found takes 256 B, 246 B more; 1KiB would be kept",), ("bytes",),
    ),
    Sentence(23, "optimize --help", ("--verify / --no-verify Check the result", "--inline Inline"), ("<bool>",)),
    Sentence(24, "optimize --help", ("--memory-budget SIZE", "for example 40MiB"), ("--memory-budget 40MiB",)),
    Sentence(25, "optimize --help", ("--skip NAME Leave out a pass or rule; docs/rules.md names them",)),
    Sentence(26, "optimize large.onnx", ("bytes 2 MiB 2 MiB",), ("MB", "kB")),
    Sentence(26, "memory large.onnx --levers none", ("weights 2 MiB",), ("MB", "kB")),
    Sentence(26, "compile large.onnx large", ("weights 2 MiB", "arena 0 B"), ("MB", "kB", " bytes")),
    Sentence(26, "inspect large.onnx", ("file 2 MiB",), ("MB", "kB")),
    Sentence(
        27, "verify alone/split.onnx split.onnx",
        ("'alone/split.onnx' keeps tensor 'w' in 'alone/split.data', which does not exist; put the data file beside",),
        ("[ONNXRuntimeError]",),
    ),
    Sentence(
        28, "verify fixed.onnx image.onnx",
        ("the models take different inputs: 'x' is float[1, 64] and float[1, 2, 8, 8]",), ("[ONNXRuntimeError]",),
    ),
    Sentence(29, "compile fixed.onnx three --target x86-64-v3", ("for x86-64-v3 (AVX2)", "1 different kernel,")),
    Sentence(
        30, "compile image.onnx image", ("compared within", "of ONNX Runtime on", "allowed: 3e-05 (float32)"),
        ("equal to",),
    ),
    # The program is made again with exact kernels before it is refused, so that --exact is no way on any more.
    Sentence(
        31, "compile image.onnx image --tolerance 1e-12",
        ("the program does not give what ONNX Runtime gives: output 'y': off by", "nothing was written; --tolerance",),
    ),
    Sentence(
        32, "compile stiff.onnx stiff",
        ("the dims of 'x' are not all numbers: give 'n', 'm' a value each, --dim n=1 --dim m=1 for",),
    ),
    Sentence(33, "run fixed.onnx", ("'x' is missing: give --input x=FILE.npy, or --random.",)),
    Sentence(34, "run fixed.onnx --input x=x.npy", ("'x.npy' does not exist; check the path.",), ("Errno",)),
    Sentence(
        36, "memory in.onnx --dim batch=8 --levers none", ("another order could save at most",),
        ("no order needs less than",),
    ),
    Sentence(
        37, "memory in.onnx --dim batch=8 --levers none", ("results in place, slices", "already used;"), ("taken:",),
    ),
    Sentence(38, "memory fixed.onnx", ("nothing found that needs 10% less",), ("no plan at 90%",)),
    Sentence(39, "memory fixed.onnx", ("arena 256 B, the least there is",), ("greedy", "tightest hole")),
    Sentence(
        41, "schedule fixed.onnx --device cpu:2 --no-measure",
        ("policy makespan speed-up over one launch per region",), ("/ this",),
    ),
    Sentence(
        42, "schedule fixed.onnx --device cpu:2", ("lower bound time gap",), ("no schedule is below", "is above by")
    ),
    Sentence(
        43, "schedule fixed.onnx --device h200",
        ("bound over all kernel choices", "no reuse across workers", "reuse with waits"),
        ("any kernels", "forbid"),
    ),
    Sentence(44, "schedule fixed.onnx --device cpu:2", ("% of the workers' time",), ("multiprocessor",)),
    Sentence(
        45, "schedule fixed.onnx --device a100",
        ("there is no device 'a100'; known are h200, v100, cpu, cpu:N, or a TOML file (docs/scheduling.md says how).",),
        ("No such file or directory",),
    ),
    Sentence(
        46, "explain relus.onnx --rule fold-constants",
        ("did not fire at 3 places: 2 x 'a', 'b' depends on 'x', an input",), ("did not fire did", "'...'"),
    ),
)  # fmt: skip


@pytest.fixture
def models(shell: Shell) -> Shell:
    """Small models: of fixed dims, with nothing to do, for one size alone, with a data file that is elsewhere."""
    for name, text in {
        "fixed": "g (float[1,64] x) => (float[1,64] y) { i = Identity(x) y = Relu(i) }",
        "done": "g (float[1,64] x) => (float[1,64] y) { y = Relu(x) }",
        "stiff": "g (float[n,m] x) => (float[4,4] y) { s = Constant<value = int64[2] {4,4}>() y = Reshape(x, s) }",
        "relus": "g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Abs(b) }",
    }.items():
        shell.write(f"{name}.onnx", support.model(text))
    conv = "g (float[1,2,8,8] x) => (float[1,4,8,8] y) { y = Conv<pads = [1,1,1,1]>(x, k) }"
    shell.write("image.onnx", support.model(conv, k=DRAW.standard_normal((4, 2, 3, 3)).astype(np.float32)))
    product = "g (float[1,1024] x) => (float[1,512] y) { y = MatMul(x, w) }"
    large = support.model(product, w=np.ones((1024, 512), np.float32) * DRAW.standard_normal(512).astype(np.float32))
    shell.write("large.onnx", large)
    onnx.save(large, "split.onnx", save_as_external_data=True, location="split.data", size_threshold=0)
    Path("alone").mkdir()
    Path("alone/split.onnx").write_bytes(Path("split.onnx").read_bytes())
    return shell


def _plain(text: str) -> str:
    """The text in one line, without marks of emphasis and code, and without rules of tables."""
    return re.sub(r"\s+", " ", re.sub(r"[*`─]", "", text))


def _check(sentence: Sentence, said: str) -> None:
    for words in sentence.says:
        assert words in said, said
    for words in sentence.no_more:
        assert words not in said, said


@pytest.mark.parametrize("sentence", DOCUMENTS, ids=lambda sentence: f"{sentence.number} {sentence.source}")
def test_a_document_says(sentence: Sentence) -> None:
    _check(sentence, _plain((ROOT / sentence.source).read_text()))


@pytest.mark.parametrize("sentence", COMMANDS, ids=lambda sentence: f"{sentence.number} {sentence.source}")
def test_a_command_says(models: Shell, sentence: Sentence) -> None:
    answer = models.run(*sentence.source.split())
    _check(sentence, _plain(answer.out + answer.err))


def test_a_fault_of_our_own_says_where_to_report_it(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentence 35. The repository has no address of its own yet, so the sentence names the file that says how."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(graphopt, "optimize", broken)
    answer = models.run("optimize", "fixed.onnx", "o.onnx")
    assert answer.status == 1
    assert answer.error.startswith("internal error (ZeroDivisionError at cli/optimize.py:")
    assert answer.error.endswith("please report this with the model that shows it: CONTRIBUTING.md says how.")
    assert "## Report a fault" in (ROOT / "CONTRIBUTING.md").read_text()


def test_what_changed_comes_before_what_went(models: Shell) -> None:
    """Sentence 47."""
    models.run("optimize", "in.onnx", "out.onnx")
    said = models.run("diff", "in.onnx", "out.onnx").out
    places = [said.index(head) for head in ("changed: 1 node", "only in A: 3 nodes")]
    assert places == sorted(places)


def test_preparing_solvers_is_said_on_screen() -> None:
    """Sentence 49, whose text a command prints only once; that it does is tested in test_commands.py."""
    assert COMPILING == "compiling solvers, once per installation"


def test_every_sentence_is_checked() -> None:
    """Sentence 40 is checked where records of tiers are made, in tests/report/test_memory.py."""
    elsewhere = {35, 40, 47}
    checked = {sentence.number for sentence in (*DOCUMENTS, *COMMANDS)}
    assert checked | elsewhere == set(range(1, 50))
