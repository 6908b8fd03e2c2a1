"""`graphopt memory`: figures, files, and what is refused; budgets of `optimize` and `compile`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests import support
from tests.cli.shell import Shell

TEXT = """g (float[batch,64] x) => (float[batch,64] y) {
    a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) y = Softmax(c)
}"""


@pytest.fixture
def memory(shell: Shell) -> Shell:
    draw = np.random.default_rng(0)
    weights = {"w": (64, 256), "v": (256, 64)}
    arrays = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    shell.write("m.onnx", support.model(TEXT, **arrays))
    return shell


def test_says_the_peak_what_causes_it_and_what_would_save(memory: Shell) -> None:
    answer = memory.run("memory", "m.onnx", "--dim", "batch=2")
    assert (answer.status, answer.err) == (0, "")
    said = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert said[0] == "m.onnx (batch=2)"
    assert said[1].startswith("peak 2.5 KiB at step 2 of 4:") and "(MatMul)" in said[1]
    assert said[2].startswith("arena 2.5 KiB, the least there is")
    assert "weights 128 KiB; inputs 512 B, the caller's" in said
    assert "order as in the file" in said and any(one.endswith("nothing no order needs less") for one in said)
    assert "formula 1280*batch" in said
    assert any(line.startswith("results in place, slices") for line in said)
    assert memory.files() == {"in.onnx", "m.onnx"}


def test_writes_a_record_a_page_a_trace_and_an_annotated_model(memory: Shell) -> None:
    answer = memory.run(
        "memory", "m.onnx", "--tiers", "sram+flash", "--json", "--html", "r.html", "--trace", "r.trace",
        "--annotate", "r.onnx", "--what-if", "batch=1,4",
    )  # fmt: skip
    assert answer.status == 0
    record = answer.json
    assert record["schema"] == "graphopt.memory/1" and record["dims"] == {"batch": 1}
    assert [line["dims"] for line in record["what_if"]] == [{"batch": 1}, {"batch": 4}]
    assert record["tiers"]["machine"] == "sram+flash"
    assert {line["tier"] for line in record["buffers"]} <= {"sram", "flash"}
    assert json.loads((memory.folder / "r.trace").read_text())["traceEvents"]
    assert b"chart-left" in (memory.folder / "r.html").read_bytes()
    noted = memory.read("r.onnx").graph.node[0].metadata_props
    assert [(entry.key, entry.value) for entry in noted] == [
        ("memory.a", "offset 0, 1024 bytes, steps 0 to 1, tier sram")
    ]


def test_the_page_takes_the_records_of_other_runs(memory: Shell) -> None:
    for name, options in (
        ("before.json", ("--dim", "batch=2")),
        ("after.json", ("--dim", "batch=4", "--order", "best")),
    ):
        answer = memory.run("memory", "m.onnx", *options, "--json")
        (memory.folder / name).write_text(answer.out)
    words = ("memory", "m.onnx", "--dim", "batch=4", "--html")
    assert memory.run(*words, "alone.html").status == 0
    assert memory.run(*words, "both.html", "--beside", "before.json", "--beside", "after.json").status == 0
    alone, both = ((memory.folder / name).read_bytes() for name in ("alone.html", "both.html"))
    assert len(both) > len(alone), "what the page does with them, tests/report/test_memory_page.py tells"
    answer = memory.run("memory", "m.onnx", "--dim", "batch=4", "--beside", "before.json")
    assert answer.status == 2 and answer.error == "--beside: other runs are shown on the page; give --html FILE."


def test_json_alone_on_stdout(memory: Shell) -> None:
    answer = memory.run("memory", "m.onnx", "--dim", "batch=2", "--json")
    assert answer.json["peak"] == 2560 and "peak" in answer.err


def test_a_budget_is_kept_or_refused_with_what_is_missing(memory: Shell) -> None:
    answer = memory.run("memory", "m.onnx", "--dim", "batch=2", "--budget", "4KiB")
    assert answer.status == 0 and "budget         4 KiB, kept with 1.5 KiB to spare" in answer.out
    answer = memory.run("memory", "m.onnx", "--dim", "batch=2", "--budget", "1KiB")
    assert answer.status == 1
    assert answer.error == (
        "a memory budget of 1 KiB cannot be kept: the least arena that was found takes 2.5 KiB, 1.5 KiB more; "
        "3KiB would be kept."
    )


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ([], 1, "the size of 'x' depends on the dim 'batch': give 'batch' a value, --dim batch=1 for example."),
        (["--dim", "seq=2"], 1, "there is no dynamic dim 'seq'"),
        (["--dim", "batch=2", "--budget", "many"], 2, "--budget: 'many' is no number of bytes"),
        (["--dim", "batch=2", "--budget", "0.5"], 2, "--budget: '0.5' is no byte; a share is told in percent"),
        (["--what-if", "batch=a"], 2, "--what-if: 'batch=a' is not of the form batch=1,2,4,8."),
        (["--dim", "batch=2", "--tiers", "none"], 1, "none"),
        (["--dim", "batch=2", "--html", "m.onnx"], 2, "--html: 'm.onnx' is the input itself; choose another file."),
        (["--trace", "r.html", "--html", "./r.html"], 2, "--trace: 'r.html' is written by --html too"),
        (["--dim", "batch=2", "--html", "no/such/place.html"], 1, "the folder 'no/such' does not exist"),
        (["--beside", "r.json"], 2, "--beside: other runs are shown on the page; give --html FILE."),
        (["--html", "p.html", "--beside", "none.json"], 1, "'none.json' cannot be read: No such file or directory."),
        (["--html", "p.html", "--beside", "m.onnx"], 1, "'m.onnx' is no record of memory of this version ("),
    ],
)
def test_what_cannot_be_done_is_one_sentence(memory: Shell, options: list[str], status: int, said: str) -> None:
    answer = memory.run("memory", "m.onnx", *options)
    lines = answer.err.splitlines()
    assert answer.status == status and len(lines) == 1 and said in lines[0], answer.err


def test_the_sizes_that_are_told_suit_images(shell: Shell) -> None:
    shell.write("images.onnx", support.model("g (float[n,3,h,v] x) => (float[n,3,h,v] y) { y = Relu(x) }", 18))
    assert "--dim n=1 --dim h=224 --dim v=224 for example" in shell.run("memory", "images.onnx").error
    caches = "g (float[n,2,past,4] x) => (float[n,2,past,4] y) { y = Relu(x) }"
    shell.write("caches.onnx", support.model(caches, 18))
    assert "--dim n=1 --dim past=1 for example" in shell.run("memory", "caches.onnx").error


def test_tiers_that_cannot_hold_the_model_are_refused(memory: Shell) -> None:
    (memory.folder / "tiny.toml").write_text(
        'name = "tiny"\n'
        '[[memory.tier]]\nname = "sram"\ncapacity = "1KiB"\nread_bandwidth = 1e9\nwrite_bandwidth = 1e9\n'
        '[[memory.tier]]\nname = "flash"\ncapacity = "2KiB"\nread_bandwidth = 1e8\nwrite_bandwidth = 1e7\n'
    )
    answer = memory.run("memory", "m.onnx", "--dim", "batch=2", "--tiers", "tiny.toml")
    assert answer.status == 1 and "bytes" in answer.error


def test_optimize_keeps_a_budget_bit_for_bit(memory: Shell) -> None:
    answer = memory.run("optimize", "m.onnx", "out.onnx", "--dim", "batch=2", "--memory-budget", "4KiB", "--json")
    record = answer.json["memory"]
    assert answer.status == 0 and record["arena"] <= record["budget"] == 4096 and record["bit_equal"]
    assert "the budget holds, even where every result has bytes of its own" in answer.err
    answer = memory.run("optimize", "m.onnx", "half.onnx", "--dim", "batch=2", "--memory-budget", "100%", "--json")
    assert answer.status == 0 and answer.json["memory"]["budget"] == answer.json["memory"]["arena_best"]
    answer = memory.run("optimize", "m.onnx", "none.onnx", "--dim", "batch=2", "--memory-budget", "1KiB")
    assert answer.status == 1 and "cannot be kept" in answer.error and "none.onnx" not in memory.files()


def test_compile_keeps_a_budget_or_writes_nothing(memory: Shell) -> None:
    answer = memory.run("compile", "m.onnx", "bundle", "--dim", "batch=2", "--memory-budget", "64")
    assert answer.status == 1 and "cannot be kept: the least arena" in answer.error and "bundle" not in memory.files()


def test_compile_keeps_a_budget_with_any_number_of_threads(shell: Shell) -> None:
    """Three chains side by side take more memory for several workers than one after the other, where they may."""
    draw = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    lines = []
    for one, width in (("Sin", 512), ("Cos", 448), ("Tanh", 384)):  # of different widths, or they would be one chain
        weights[f"up_{one}"] = draw.standard_normal((512, width)).astype(np.float32)
        weights[f"down_{one}"] = draw.standard_normal((width, 512)).astype(np.float32)
        lines.append(f"{one} = {one}(x) a_{one} = MatMul({one}, up_{one}) b_{one} = MatMul(a_{one}, down_{one})")
        lines.append(f"c_{one} = Sigmoid(b_{one})")
    text = f"g (float[4,512] x) => (float[4,512] y) {{ {' '.join(lines)} y = Sum(c_Sin, c_Cos, c_Tanh) }}"
    shell.write("b.onnx", support.model(text, 18, **weights))

    def sizes(*options: str) -> tuple[int, int | None]:
        answer = shell.run("compile", "b.onnx", "bundle", *options, "--json")
        assert answer.status == 0, answer.err
        program = json.loads((shell.folder / "bundle" / "manifest.json").read_bytes())["program"]
        assert program["arena_bytes"] == answer.json["arena_bytes"]
        return program["arena_bytes"], program["shared_arena_bytes"]

    alone, together = sizes()
    assert together is not None and together > alone
    assert sizes("--memory-budget", str(alone)) == (alone, alone)
    assert sizes("--threads", "1") == (alone, None)
