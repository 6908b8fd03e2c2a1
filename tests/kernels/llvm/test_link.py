"""What a linker is asked for and how objects are kept, with a linker that notes its orders."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from kernels.kernel import Kernel
from kernels.llvm import link, load
from kernels.llvm.compile import CompileError, compile_object
from kernels.llvm.link import LinkError, link_program, link_shared
from kernels.llvm.load import Loaded, MissingSymbol, ObjectCache
from kernels.target import Target, aarch64, host, thumbv7em, x86_64_v3
from kernels.templates.gemm import GEMM, Gemm

NOTES = """
import json, sys
from pathlib import Path
given = sys.argv[1:]
out = given[given.index("-o") + 1]
script = next((one.partition("=")[2] for one in given if one.startswith("--version-script=")), None)
options = [one for one in given[:given.index("-o")] if not one.startswith("--version-script=")]
objects = [Path(one).read_text() for one in given[given.index("-o") + 2:]]
Path(out).write_text(json.dumps([options, objects, script and Path(script).read_text()]))
"""


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "linker.py"
    script.write_text(NOTES)
    monkeypatch.setattr(link, "_linker", lambda target: [sys.executable, str(script)])


SHARED = ["-shared", "-Bsymbolic", "-z", "now", "-z", "noexecstack", "-z", "noseparate-code", "--hash-style=gnu",
          "--build-id=none"]  # fmt: skip


@pytest.mark.usefixtures("noted")
def test_orders_to_the_linker() -> None:
    objects = [b"one", b"two"]
    assert json.loads(link_shared(objects, host())) == [SHARED, ["one", "two"], None]
    made = link_shared(objects, host(), exported=("f", "g"), name="libg.so")
    assert json.loads(made) == [[*SHARED, "-soname", "libg.so"], ["one", "two"], "{ global: f; g; local: *; };\n"]
    assert json.loads(link_program(objects, aarch64())) == [["-static"], ["one", "two"], None]


def test_a_linker_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_linker", lambda target: [sys.executable, "-c", "import sys; sys.exit('no such thing')"])
    with pytest.raises(LinkError, match=f"{sys.executable} does not link for {host().triple}: no such thing"):
        link_program([b""], host())


@pytest.mark.parametrize(
    ("there", "zig", "native", "foreign"),
    [
        (("ld.lld", "ld"), True, ["/bin/ld.lld", "-m", "elf_x86_64"], ["/bin/ld.lld", "-m", "aarch64linux"]),
        (("ld",), True, ["/bin/ld"], [sys.executable, "-m", "ziglang", "ld.lld", "-m", "aarch64linux"]),
        ((), True, [sys.executable, "-m", "ziglang", "ld.lld", "-m", "elf_x86_64"], None),
        ((), False, None, None),
    ],
)
def test_which_linker_is_taken(
    there: tuple[str, ...], zig: bool, native: list[str] | None, foreign: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(link, "host", x86_64_v3)
    monkeypatch.setattr(link.shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: object() if zig else None)
    for target, wanted in ((x86_64_v3(), native), (aarch64(), foreign)):
        if wanted is not None:
            assert link._linker(target) == wanted
    if not zig:
        with pytest.raises(LinkError, match=r"no linker for x86_64.*: install binutils, lld, or `pip install ziglang`"):
            link._linker(x86_64_v3())


def _kernel() -> Kernel:
    return GEMM.kernel(Gemm(3, 4, 5), host())


def test_objects_are_compiled_once_for_each_text_and_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, compiled = _kernel().module.text(), []

    def noting(text: str, target: Target) -> bytes:
        compiled.append(target)
        return compile_object(text, target)

    monkeypatch.setattr(load, "compile_object", noting)
    cache = ObjectCache(tmp_path / "objects")
    code = cache.get(text, host())
    assert cache.get(text, host()) == ObjectCache(tmp_path / "objects").get(text, host()) == code
    assert len(compiled) == 1 and len(list((tmp_path / "objects").iterdir())) == 1
    cache.get(text + "\n", host())
    cache.get(text, x86_64_v3())
    assert len(compiled) == 3 and len(list((tmp_path / "objects").iterdir())) == 3
    ObjectCache(None).get(text, host())
    assert len(compiled) == 4 and len(list((tmp_path / "objects").iterdir())) == 3


def test_what_is_begun_is_compiled_once_and_what_is_not_wanted_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    text, going, compiled = _kernel().module.text(), threading.Event(), []

    def waiting(text: str, target: Target) -> bytes:
        compiled.append(text)
        going.wait(60.0)
        return text.encode()

    monkeypatch.setattr(load, "compile_object", waiting)
    cache = ObjectCache(None)
    for number in (1, 2, 2, 3):
        cache.begin(text + "\n" * number, host())
    releasing = threading.Timer(0.1, going.set)
    releasing.start()
    cache.only([(text + "\n\n\n", host())])  # waits for the first, which is being compiled
    assert going.is_set() and cache.get(text + "\n\n\n", host()) == (text + "\n\n\n").encode()
    assert [len(one) - len(text) for one in compiled] == [1, 3], "the second was never begun"


def test_who_asks_compiles_what_the_thread_has_not_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    going, begun = threading.Event(), threading.Event()

    def waiting(text: str, target: Target) -> bytes:
        if text == "first":
            begun.set()
            going.wait(60.0)
        return threading.current_thread().name.partition("_")[0].encode()

    monkeypatch.setattr(load, "compile_object", waiting)
    cache = ObjectCache(None)
    for text in ("first", "second"):
        cache.begin(text, host())
    assert begun.wait(60.0) and cache.get("second", host()) == b"MainThread"
    going.set()
    assert cache.get("first", host()) == b"compiler"


def test_what_llvm_refuses_is_told_to_whoever_asks_for_it() -> None:
    cache = ObjectCache(None)
    cache.begin("nonsense", host())
    with pytest.raises(CompileError, match="LLVM does not accept the generated text"):
        cache.get("nonsense", host())


def test_a_name_that_is_not_there() -> None:
    loaded = Loaded(compile_object(_kernel().module.text(), host()), host())
    assert loaded.address("product")
    with pytest.raises(MissingSymbol, match="the object has no symbol 'nothing'"):
        loaded.address("nothing")


def test_a_text_that_is_none() -> None:
    with pytest.raises(CompileError, match="LLVM does not accept the generated text"):
        compile_object("define void @f() { ret i32 1 }", host())


def test_without_ziglang_there_is_no_run_time_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        LinkError, match=r"no run-time library for thumbv7em-unknown-none-eabihf: `pip install ziglang`"
    ):
        link.run_time.__wrapped__(thumbv7em())
