"""A drawing of a sketch: boxes in layers that do not overlap, arrows that point down, names that are data."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.report import drawing
from graphopt.rewrite.record import Dot, Sketch


def _boxes(text: str) -> dict[str, tuple[float, float, float]]:
    """Left, top and width of each box, by the node's name."""
    found = {}
    for group in ElementTree.fromstring(text).iter("g"):
        title, box = group.find("title"), group.find("rect")
        assert title is not None and title.text is not None and box is not None
        found[title.text.split()[-1]] = (float(box.attrib["x"]), float(box.attrib["y"]), float(box.attrib["width"]))
    return found


def _sketch(names: str, *arrows: tuple[int, int]) -> Sketch:
    return Sketch(tuple(Dot("Relu", name, True) for name in names.split()), arrows, 0)


def test_readers_stand_below_what_they_read() -> None:
    boxes = _boxes(drawing.draw(_sketch("a b c", (0, 1), (1, 2), (0, 2)), "three"))
    tops = [boxes[name][1] for name in "abc"]
    assert tops[0] < tops[1] < tops[2]


def test_a_constant_stands_right_above_its_reader() -> None:
    boxes = _boxes(drawing.draw(_sketch("a b c w", (0, 1), (1, 2), (3, 2)), "a constant"))
    assert boxes["w"][1] == boxes["b"][1]


def test_an_arrow_over_several_layers_goes_round_the_boxes_between() -> None:
    text = str(drawing.draw(_sketch("a b c d", (0, 1), (1, 2), (2, 3), (0, 3)), "a long arrow"))
    (long_way,) = [line for line in text.split('class="way" d="')[1:] if line.split('"')[0].count("C") > 1]
    x = float(long_way.split("V")[0].split()[-2].split("C")[-1])
    left, _, width = _boxes(text)["b"]
    assert not left < x < left + width


def test_names_are_escaped() -> None:
    text = str(drawing.draw(Sketch((Dot("Relu", '<script>alert("x")</script>', False),), (), 0), "<&>"))
    assert "<script" not in text
    ElementTree.fromstring(text)


def test_what_cannot_be_layered_is_drawn_all_the_same() -> None:
    assert set(_boxes(drawing.draw(_sketch("a b", (0, 1), (1, 0)), "a circle"))) == {"a", "b"}


@pytest.mark.parametrize("count", [0, 1])
def test_next_to_nothing(count: int) -> None:
    text = str(drawing.draw(_sketch("a" * count), "little"))
    assert len(_boxes(text)) == count


@given(
    st.integers(1, 12).flatmap(
        lambda count: st.tuples(
            st.just(count), st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=24)
        )
    )
)
def test_boxes_never_overlap_and_lie_inside(case: tuple[int, set[tuple[int, int]]]) -> None:
    count, pairs = case
    arrows = tuple(sorted((one, two) for one, two in pairs if one < two))
    text = str(drawing.draw(_sketch(" ".join(f"n{number}" for number in range(count)), *arrows), "random"))
    boxes = list(_boxes(text).values())
    root = ElementTree.fromstring(text)
    assert len(boxes) == count
    for place, (left, top, width) in enumerate(boxes):
        assert left >= 0 and top >= 0 and left + width <= float(root.attrib["width"]) + 1
        assert top + drawing.HEIGHT <= float(root.attrib["height"])
        for other_left, other_top, other_width in boxes[:place]:
            assert top != other_top or left + width <= other_left or other_left + other_width <= left
