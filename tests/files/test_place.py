"""Where an output may lead: links, devices, pipes, folders; and what becomes of the file that was there."""

from __future__ import annotations

import itertools
import os
import re
import socket
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphopt.errors import SaveError
from graphopt.files.place import find_place
from graphopt.files.single import write_file
from graphopt.model.load import load
from graphopt.model.save import data_files, save
from tests import support
from tests.files.faults import counted, leftovers


def _model() -> onnx.ModelProto:
    weights = np.arange(1024, dtype=np.float32)
    return support.model("g (float[1024] x) => (float[1024] y) { y = Add(x, w) }", w=weights)


def _external(folder: Path) -> Path:
    folder.mkdir()
    onnx.save(_model(), folder / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    return folder / "in.onnx"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_and_stays(there: bool, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("store/file")
    if there:
        (tmp_path / "store" / "file").write_bytes(b"old")
    write_file(tmp_path / "one", b"new")
    assert os.readlink(tmp_path / "one") == "two" and os.readlink(tmp_path / "two") == "store/file"
    assert not (tmp_path / "store" / "file").is_symlink() and (tmp_path / "one").read_bytes() == b"new"
    assert not leftovers(tmp_path / "store")


def test_a_model_is_written_behind_a_link_in_its_folder(tmp_path: Path) -> None:
    source = _external(tmp_path / "in")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    model = load(source)
    save(model, tmp_path / "link.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "link.onnx", "m.onnx", "m.onnx.data"}
    for name in ("link.onnx", "m.onnx"):
        assert onnx.load(tmp_path / name).graph.initializer[0].raw_data == _model().graph.initializer[0].raw_data


def test_a_link_into_another_folder_takes_no_model_with_a_data_file(tmp_path: Path) -> None:
    source = _external(tmp_path / "in")
    (tmp_path / "link.onnx").symlink_to("in/in.onnx")
    before = source.read_bytes()
    model = load(source)
    with pytest.raises(SaveError, match=r"link.onnx' is a link into another folder, .*; write to '.*/in/in\.onnx'\.$"):
        save(model, tmp_path / "link.onnx", source=source, source_data=data_files(model), in_place=True)
    assert source.read_bytes() == before


def test_a_device_is_written_through(tmp_path: Path) -> None:
    """A terminal, which is a character device that everybody may make."""
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    (tmp_path / "out.html").symlink_to(name)
    write_file(tmp_path / "out.html", b"<p>")
    assert os.read(ours, 3) == b"<p>"
    assert stat.S_ISCHR(os.stat(name).st_mode) and (tmp_path / "out.html").is_symlink()
    os.close(ours)
    os.close(theirs)


def _pipe(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = _pipe(tmp_path / "pipe")
    save(load(_model()), tmp_path / "pipe")
    assert onnx.ModelProto.FromString(os.read(pipe, 1 << 16)).graph.node[0].op_type == "Add"
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode) and not leftovers(tmp_path)
    os.close(pipe)


def test_a_pipe_takes_no_model_with_a_data_file(tmp_path: Path) -> None:
    pipe = _pipe(tmp_path / "pipe")
    with pytest.raises(
        SaveError, match=r"pipe' is no file, and this model needs a data file beside it; choose a file\."
    ):
        save(load(_external(tmp_path / "in")), tmp_path / "pipe")
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)
    os.close(pipe)


def test_a_file_that_has_no_name_any_more_is_written_through(tmp_path: Path) -> None:
    """What stands behind /dev/stdout may be one."""
    descriptor = os.open(tmp_path / "gone", os.O_RDWR | os.O_CREAT)
    (tmp_path / "gone").unlink()
    write_file(f"/proc/self/fd/{descriptor}", b"new")
    assert os.pread(descriptor, 9, 0) == b"new" and not list(tmp_path.iterdir())
    os.close(descriptor)


def test_a_system_fault_of_a_device_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = _pipe(tmp_path / "pipe")

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SaveError, match=r"pipe' was not written: the disk is full"):
        write_file(tmp_path / "pipe", b"new")
    os.close(pipe)


def test_what_is_no_file_and_no_stream_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "lost").symlink_to("no/such/file")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for name, message in (
        ("folder", "folder' is a folder; give the name of the file to write."),
        ("socket", "socket' is a socket, which is never overwritten; choose a file."),
        ("circle", "circle' was not written: Too many levels of symbolic links; choose another place."),
        ("no/file", "no' does not exist; create it first."),
        ("lost", "no/such' does not exist; create it first."),
        ("file/inside", "inside' was not written: Not a directory; choose another place."),
        ("a\0b", "is no name of a file, since it holds a NUL character; choose another."),
        ("n" * 300, "was not written: File name too long; choose another place."),
    ):
        with pytest.raises(SaveError, match=re.escape(message)):
            write_file(tmp_path / name, b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "circle", "lost", "socket"}


def test_a_block_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").write_bytes(b"")
    honest = os.stat

    def as_block_device(path: str | Path, **options: object) -> os.stat_result:
        found = list(honest(path, **options))  # type: ignore[call-overload]
        return os.stat_result([stat.S_IFBLK | 0o660, *found[1:]])

    monkeypatch.setattr(os, "stat", as_block_device)
    with pytest.raises(SaveError, match=r"disk' is a block device, which is never overwritten; choose a file\."):
        find_place(tmp_path / "disk")


def test_other_hard_links_keep_what_they_had_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "other").hardlink_to(tmp_path / "file")
    write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and (tmp_path / "other").read_bytes() == b"old"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_everything_is_on_disk_before_a_name_leads_to_it(tmp_path: Path) -> None:
    source, order = _external(tmp_path / "in"), []
    with counted(lambda name, number: order.append(name)):
        save(load(source), tmp_path / "out.onnx")
    unsynced = False
    for name in order:
        if name in ("write", "fsync"):
            unsynced = name == "write"
        assert not (unsynced and name in ("rename", "replace", "link")), order
    data, model = order.index("link"), len(order) - order[::-1].index("replace")
    syncs = [at for at, pair in enumerate(itertools.pairwise(order)) if pair == ("open", "fsync")]  # of folders
    assert any(data < at < model for at in syncs), "the name of the data is on disk before the model takes its place"
    assert model in syncs, "then the model's"
