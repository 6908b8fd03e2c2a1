"""Standard Task Graph files: rows until a comment or the end; a bad row is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.errors import InvalidTaskGraph
from scheduler.stg import parse_stg, read_stg

GRAPH = """\
     3
    0    0    0
    1    5    1    0
    2    3    1    0
    3    4    1    1
    4    0    2    2    3
# Standard Task Graph
 9 9 9 not a row
"""


def test_a_file_as_the_set_has_them(tmp_path: Path) -> None:
    file = tmp_path / "rand0000.stg"
    file.write_text(GRAPH)
    graph = read_stg(file)
    assert graph.name == "rand0000.stg"
    assert graph.numbers == (0, 1, 2, 3, 4)
    assert graph.tasks.times.tolist() == [0, 5, 3, 4, 0]
    assert graph.tasks.before_start.tolist() == [0, 0, 1, 2, 3, 5]
    assert graph.tasks.before.tolist() == [0, 0, 1, 2, 3]


def test_the_count_in_the_first_line_is_not_trusted() -> None:
    for count in ("0", "2", "5", "1000"):
        assert parse_stg(GRAPH.replace("     3", count, 1), "graph").tasks.count == 5


def test_rows_may_end_without_a_comment_and_have_gaps_and_any_numbers() -> None:
    graph = parse_stg("2\n\n7 1.5 1 3\n\n3 2 0", "graph")
    assert graph.numbers == (3, 7)
    assert graph.tasks.times.tolist() == [2, 1.5]
    assert graph.tasks.before.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'g' is empty: a Standard Task Graph file begins with its number of tasks."),
        ("# nothing", "'g' is empty: a Standard Task Graph file begins with its number of tasks."),
        ("0 1 0\n1 1 0\n", "'g', line 1: '0 1 0' is no number of tasks, which comes first."),
        ("many\n0 1 0\n", "'g', line 1: 'many' is no number of tasks, which comes first."),
        ("2\n# end", "'g' has no task: a row is a number, a time, a count and as many predecessors."),
        ("1\n0 1\n", "'g', line 2: a row is a number, a time, a count and as many predecessors; here are 2 fields."),
        ("1\n0 x 0\n", "'g', line 2: the time 'x' of task 0 is not a number."),
        ("1\n0 -4 0\n", "'g', line 2: the time -4 of task 0 is not between 0 and 9007199254740992."),
        ("1\n0 nan 0\n", "'g', line 2: the time nan of task 0 is not between 0 and 9007199254740992."),
        ("1\n0 1 zero\n", "'g', line 2: 'zero' is not a whole number."),
        ("2\n0 1 0\n\n1 1 2 0\n", "'g', line 4: task 1 says it has 2 predecessors and names 1."),
        ("2\n0 1 0\n1 1 1 0 0\n", "'g', line 3: task 1 says it has 1 predecessors and names 2."),
        ("2\n0 1 0\n1 1 1 8\n", "'g', line 3: task 1 waits for 8, which is not there."),
        ("2\n0 1 0\n0 2 0\n", "'g', line 3: task 0 is there already."),
        ("2\n5 1 1 6\n6 1 1 5\n", "the tasks wait for each other in a circle: 5 -> 6 -> 5; drop one of these edges."),
        ("1\n0 9e15 0\n1 9e15 0\n", "'g': the times add up to more than 9007199254740992: too much to count."),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidTaskGraph) as caught:
        parse_stg(text, "g")
    assert str(caught.value) == message


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidTaskGraph, match=r"none\.stg' cannot be read: No such file or directory; give a Standard"
    ):
        read_stg(tmp_path / "none.stg")
    (tmp_path / "bytes.stg").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidTaskGraph, match=r"bytes\.stg' cannot be read: it is not text; give a Standard"):
        read_stg(tmp_path / "bytes.stg")
