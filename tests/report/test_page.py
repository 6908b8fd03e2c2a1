"""The HTML report: one file that stands alone, is well-formed, and says what was done and what was not."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from graphopt.flows.records.models import OptimizeFile
from graphopt.passes import pipeline
from graphopt.report.page import page as page_of
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.explain import NearMisses
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, rule
from tests import support
from tests.cli.shell import Shell

VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})
SVG_VOID = frozenset({"rect", "path"})


class _Reader(HTMLParser):
    """Checks that every element is closed in turn, and collects text, attributes and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes another element, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += f" {data}"


def _read(path: str) -> _Reader:
    reader = _Reader()
    reader.feed(Path(path).read_text())
    reader.close()
    assert reader.open == []
    reader.text = " ".join(reader.text.split())
    return reader


@pytest.fixture
def page(shell: Shell) -> _Reader:
    """Of an Identity, a Constant, a MatMul and an Add."""
    assert shell.run("optimize", "in.onnx", "out.onnx", "--report", "report.html").status == 0
    return _read("report.html")


def test_it_stands_alone(page: _Reader) -> None:
    text = Path("report.html").read_text()
    assert "://" not in text and "url(" not in text and "@import" not in text
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_links_lead_to_sections(page: _Reader) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        if tag == "a":
            assert str(attributes["href"])[1:] in ids


def test_what_can_scroll_is_reached_by_keyboard_and_has_a_name(page: _Reader) -> None:
    boxes = [attributes for _, attributes in page.tags if attributes.get("class") == "scroll"]
    assert boxes
    for attributes in boxes:
        assert attributes["tabindex"] == "0" and attributes["aria-label"]


def test_it_has_the_figures_and_the_verdict(page: _Reader) -> None:
    assert "nodes 5 → 2 -60%" in page.text
    assert re.search(r"✓ verified \(1\d feeds, max error 0\)", page.text)
    assert "engine ONNX Runtime" in page.text
    assert "float32 4e-06" in page.text
    assert "names, order, types and dims unchanged" in page.text
    assert "operations (flops)" in page.text


def test_rewrites_are_listed_and_drawn(page: _Reader) -> None:
    assert "Add(MatMul(a, b), c) --> Gemm(a, b, c)" in page.text
    assert "Identity 'a'" in page.text or "Identity ''" in page.text
    drawn = [str(attributes["aria-label"]) for tag, attributes in page.tags if tag == "svg"]
    assert any(re.fullmatch(r"The graph around n before rewrite \d+, matmul-add-to-gemm", label) for label in drawn)
    assert any(re.fullmatch(r"The graph around n after rewrite \d+, matmul-add-to-gemm", label) for label in drawn)
    assert "No rewrite had to be taken back." in page.text


def test_the_terminal_says_where_it_is(shell: Shell) -> None:
    assert "report        written to r.html\n" in shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.html").out
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.json", "--json")
    assert "report        written to r.json\n" in answer.err


def test_near_misses_say_why(shell: Shell) -> None:
    shell.write("near.onnx", support.model("g (float[n,4] x) => (float[n,4] y) { y = Add(x, c) }", c=np.ones(4, "f4")))
    shell.run("optimize", "near.onnx", "out.onnx", "--report", "r.html")
    text = _read("r.html").text
    assert re.search(r"1 add-zero 'c' is not 0 1 × 'c' is not 0 at Add 'y'", text)


def test_changes_of_the_signature_are_listed(shell: Shell) -> None:
    shell.run("optimize", "in.onnx", "out.onnx", "--dim", "batch=3", "--report", "r.html")
    assert "changed as asked: input x: float[batch, 4] -> float[3, 4]" in _read("r.html").text


def test_names_of_the_model_are_text(shell: Shell) -> None:
    name = '</td><script>alert("&")</script>'
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], [name], name), helper.make_node("Relu", [name], ["y"], "<b>")],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    shell.write("hostile.onnx", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert shell.run("optimize", "hostile.onnx", "out.onnx", "--report", "r.html").status == 0
    reader = _read("r.html")
    assert sum(tag == "script" for tag, _ in reader.tags) == 1
    assert name in reader.text


def test_without_a_rewrite(shell: Shell) -> None:
    shell.write("done.onnx", support.model("g (float[n] x) => (float[n] y) { y = Relu(x) }"))
    shell.run("optimize", "done.onnx", "out.onnx", "--report", "r.html")
    text = _read("r.html").text
    assert "Nothing was rewritten." in text and "No pass changed anything." in text


def test_a_long_chain_makes_a_small_page(shell: Shell) -> None:
    count = 1500
    body = " ".join(f"v{n + 1} = Identity(v{n}) " for n in range(count))
    shell.write("chain.onnx", support.model(f"g (float[n] v0) => (float[n] y) {{ {body} y = Relu(v{count}) }}"))
    shell.run("optimize", "chain.onnx", "out.onnx", "--report", "r.html")
    assert "1,100 more; --report FILE.json lists all." in _read("r.html").text
    assert Path("r.html").stat().st_size < 200_000


@pytest.mark.parametrize("name", ["report.txt", "report"])
def test_another_ending_is_refused(shell: Shell, name: str) -> None:
    answer = shell.run("optimize", "in.onnx", "out.onnx", "--report", name)
    assert answer.status == 2
    assert answer.error == f"--report: '{name}' is neither .json nor .html; the ending says what is written."
    assert shell.files() == {"in.onnx"}


def test_what_was_rolled_back_is_listed_with_its_reason(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    @rule(op("Relu", var("x")), level=0, name="relu-is-abs")
    def wrong(match: Match) -> Replacement:
        """Relu(x)  -->  Abs(x), which is wrong"""
        return match.op("Abs", match["x"])

    monkeypatch.setattr(pipeline, "STANDARD", (Pass("wrong", 0, (wrong,)), *pipeline.STANDARD))
    assert shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.html").status == 0
    text = _read("r.html").text
    assert re.search(r"Rolled back rule site reason relu-is-abs y output 'y': off by", text)
    assert re.search(r"1 relu-is-abs it fits here, but was not applied", text), "a near miss too"


def test_a_change_of_layout_lists_the_transposes_that_are_left(shell: Shell) -> None:
    shell.run("optimize", "in.onnx", "out.onnx", "--report", "r.json")
    record = msgspec.json.decode(Path("r.json").read_bytes(), type=OptimizeFile)
    left = tuple(f"'t{number}': between Conv and Reshape" for number in range(50))
    changed = msgspec.structs.replace(record, kept_transposes=left)
    Path("r.html").write_text(page_of(changed, (), None, NearMisses((), True)))
    text = _read("r.html").text
    assert "Transposes left 50 't0': between Conv and Reshape" in text
    assert "'t39': between Conv and Reshape and 10 more" in text
