"""The CSV of MiniMalloc: read, written, and refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from memplan.packing.csv_file import InvalidFile, read_csv, write_csv
from memplan.packing.solve import solve
from memplan.problem import Alias, Buffer, MemoryProblem
from memplan.verify.packing import verify
from tests.memplan.packing.drawn import problems


def written(folder: Path, text: str) -> Path:
    file = folder / "problem.csv"
    file.write_text(text)
    return file


def test_one_line_is_one_buffer(tmp_path: Path) -> None:
    problem = read_csv(written(tmp_path, "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n\n"))
    assert problem == MemoryProblem((Buffer("b1", 4, 0, 3), Buffer("b2", 4, 3, 9)), alignment=1)


def test_columns_may_be_more_and_in_any_order(tmp_path: Path) -> None:
    text = "size,id,hint,lower,upper,gaps,alignment,offset\n8,a,3,0,9,2-4 5-7,16,32\n8,b,,1,2,,,\n"
    problem = read_csv(written(tmp_path, text))
    assert problem.buffers == (
        Buffer("a", 8, 0, 9, alignment=16, offset=32, gaps=((2, 4), (5, 7))),
        Buffer("b", 8, 1, 2),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty; the first line must be 'id,lower,upper,size'"),
        ("a,0,3,4\n", "line 1: the header lacks id, lower, upper, size"),
        ("id,lower,upper\n", "line 1: the header lacks size"),
        ("id,lower,upper,size,colour\n", "line 1: the header has 'colour'"),
        ("id,lower,upper,size,size\n", "line 1: the header names one twice"),
        ("id,lower,upper,size\na,0,3\n", "line 2: 3 fields where the header names 4"),
        ("id,lower,upper,size\na,0,3,x\n", "line 2: the size 'x' is not a whole number"),
        ("id,lower,upper,size\na,0,3,1\n\nb,0.5,3,1\n", "line 4: the lower '0.5' is not a whole number"),
        ("id,lower,upper,size\na,0,3,99999999999999999999\n", "line 2: the size 99999999999999999999 is too large"),
        ("id,lower,upper,size\na,0,3,-1\n", "line 2: buffer 'a' has -1 bytes"),
        ("id,lower,upper,size\na,3,3,1\n", "line 2: buffer 'a' lives from step 3 to before 3: never"),
        ("id,lower,upper,size\na,0,3,1\na,0,3,1\n", "line 3: a buffer 'a' was there before"),
        ("id,lower,upper,size\n,0,3,1\n", "line 2: the id is empty"),
        ("id,lower,upper,size,gaps\na,0,3,1,1\n", "line 2: the gap '1' is not of the form lower-upper"),
        ("id,lower,upper,size,gaps\na,0,9,8,1-2@0:4\n", "line 2: the gap '1-2@0:4' is not of the form"),
        ("id,lower,upper,size,gaps\na,0,3,1,2-5\n", r"line 2: buffer 'a': the gap \[2, 5\) is not inside its life"),
        ("id,lower,upper,size,alignment\na,0,3,1,0\n", "line 2: buffer 'a': an alignment of 0 bytes is no alignment"),
        (
            "id,lower,upper,size,alignment,offset\na,0,3,1,4,6\n",
            "line 2: the offset 6 is no multiple of the alignment 4",
        ),
        ("id,lower,upper,size,offset\na,0,3,1,-1\n", "line 2: buffer 'a' is pinned to -1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(InvalidFile, match=fault):
        read_csv(written(tmp_path, text))


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"nowhere\.csv' cannot be read: No such file"):
        read_csv(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="it is not text"):
        read_csv(tmp_path / "bytes.csv")
    problem = MemoryProblem((Buffer("a", 8, 0, 1), Buffer("b", 8, 0, 1, alias=Alias("a"))))
    with pytest.raises(InvalidFile, match="buffer 'b' lies in another"):
        write_csv(problem, tmp_path / "out.csv")
    with pytest.raises(InvalidFile, match="cannot be written"):
        write_csv(MemoryProblem(()), tmp_path / "no" / "out.csv")


@settings(deadline=None)
@given(problem=problems())
def test_what_is_written_is_read_again(problem: MemoryProblem, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("csv") / "problem.csv"
    plain = MemoryProblem(
        tuple(buffer for buffer in problem.buffers if buffer.alias is None and buffer.layout is None), problem.alignment
    )
    write_csv(plain, file)
    again = read_csv(file)
    assert [(b.name, b.size, b.begin, b.end, b.offset, b.gaps) for b in again.buffers] == [
        (b.name, b.size, b.begin, b.end, b.offset, b.gaps) for b in plain.buffers
    ]
    assert [again.alignment_of(b) for b in again.buffers] == [plain.alignment_of(b) for b in plain.buffers]


def test_a_packing_is_written_as_pins(tmp_path: Path) -> None:
    problem = MemoryProblem((Buffer("a", 8, 0, 2), Buffer("b", 8, 1, 3)), alignment=1)
    plan = solve(problem)
    write_csv(problem, tmp_path / "out.csv", plan)
    pinned = read_csv(tmp_path / "out.csv")
    again = solve(pinned)
    verify(pinned, again)
    assert again.offsets == plan.offsets
