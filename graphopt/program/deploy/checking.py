"""Whether a bundle's files are those that its manifest names."""

from __future__ import annotations

from pathlib import Path

from graphopt.errors import BundleError
from graphopt.program.deploy.manifest import Manifest, file_of


def checked_files(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """The files that the manifest names, with the content that it says; raises BundleError."""
    contents = {}
    for name, known in manifest.files.items():
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise BundleError(f"'{folder / name}' cannot be read: {error.strerror}.") from error
        if file_of(content) != known:
            raise BundleError(f"'{folder / name}' is not the file that the manifest names: it was changed, or cut off.")
        contents[name] = content
    for name in (f"lib{manifest.name}.so", f"{manifest.name}.weights"):
        if name not in contents:
            raise BundleError(f"the manifest of '{folder}' does not list '{name}'.")
    return contents
