"""Which target this machine is said to be, from what LLVM and the kernel say of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import target
from kernels.target import Target, UnknownTarget, aarch64, host, named, why_not_here, x86_64_v3, x86_64_v4

V3 = {"avx2": True, "fma": True, "avx512f": False, "avx512vl": False}


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    host.cache_clear()
    yield
    host.cache_clear()


def _machine(monkeypatch: pytest.MonkeyPatch, triple: str, features: dict[str, bool], caches: Path) -> Target:
    monkeypatch.setattr(target.llvm, "get_default_triple", lambda: triple)
    monkeypatch.setattr(target.llvm, "get_host_cpu_name", lambda: "some")
    monkeypatch.setattr(target.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(target, "_CACHES", caches)
    return host()


@pytest.mark.parametrize(
    ("triple", "features", "sizes"),
    [
        ("x86_64-linux", {**V3, "avx512f": True, "avx512vl": True}, (64, 32)),
        ("x86_64-linux", {**V3, "avx512f": True}, (32, 16)),
        ("x86_64-linux", {**V3, "avx512vl": True}, (32, 16)),
        ("x86_64-linux", V3, (32, 16)),
        ("aarch64-linux", {"neon": True}, (16, 32)),
        ("aarch64-linux", {"avx2": True, "fma": True, "avx512f": True, "avx512vl": True}, (16, 32)),
    ],
)
def test_vectors_follow_the_features(
    triple: str, features: dict[str, bool], sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = _machine(monkeypatch, triple, features, tmp_path)
    assert (found.vector_bytes, found.vector_registers) == sizes
    assert (found.l1, found.l2) == (32 << 10, 1 << 20), "nothing is known of the caches"
    assert found.features == tuple(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items()))
    assert (found.core == x86_64_v4().core) is (sizes == (64, 32)), "wide vectors have a core of their own"


@pytest.mark.parametrize(
    ("triple", "features"),
    [("x86_64-linux", {**V3, "fma": False}), ("x86_64-linux", {**V3, "avx2": False}), ("riscv64-linux", V3)],
)
def test_other_machines_are_refused(
    triple: str, features: dict[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UnknownTarget, match=f"no code is generated for '{triple}' with the CPU 'some'"):
        _machine(monkeypatch, triple, features, tmp_path)


def _cache(folder: Path, number: int, kind: str, level: str, size: str) -> None:
    place = folder / f"index{number}"
    place.mkdir()
    for name, text in (("type", kind), ("level", level), ("size", size)):
        (place / name).write_text(f"{text}\n")


def test_caches_are_those_that_the_kernel_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _cache(tmp_path, 0, "Instruction", "1", "16K")
    _cache(tmp_path, 1, "Data", "1", "48K")
    _cache(tmp_path, 2, "Unified", "2", "2048K")
    (tmp_path / "index3").mkdir()
    found = _machine(monkeypatch, "x86_64-linux", V3, tmp_path)
    assert (found.l1, found.l2) == (48 << 10, 2 << 20)


def test_sizes_that_are_not_understood_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _cache(tmp_path, 0, "Data", "1", "1M")
    _cache(tmp_path, 1, "Unified", "two", "64K")
    found = _machine(monkeypatch, "x86_64-linux", V3, tmp_path)
    assert (found.l1, found.l2) == (32 << 10, 1 << 20)


def test_why_code_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "host", x86_64_v3)
    assert why_not_here(x86_64_v3()) is None
    lacking = "avx512f, avx512bw, avx512cd, avx512dq, avx512vl"
    assert why_not_here(x86_64_v4()) == f"this machine cannot run x86-64-v4: it lacks {lacking}"
    assert why_not_here(aarch64()) == "this machine cannot run aarch64: it is x86_64"


def test_names_of_targets() -> None:
    assert named("x86-64-v4-256") == target.x86_64_v4_256() != x86_64_v4() == named("x86-64-v4")
    with pytest.raises(UnknownTarget, match="there is no target 'v5'; known are host, x86-64-v3, x86-64-v4"):
        named("v5")  # type: ignore[arg-type]
