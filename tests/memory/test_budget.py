"""A budget that ONNX Runtime has to keep too: what is planned for next, when that ends, and what a record says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import pytest
from msgspec import structs

from graphopt.check.reference import Reference
from graphopt.check.verification import Verification
from graphopt.errors import BudgetNotKept, VerificationError
from graphopt.memory import budget as budgets
from graphopt.memory.budget import BOOKS, RETRIES, keep_budget
from graphopt.memory.budgeted import Budgeted, BudgetRecord
from graphopt.memory.measured import Use
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

MODEL = load(support.model("g (float[4] x) => (float[4] y) { y = Exp(x) }"))
RECORD = BudgetRecord(
    budget=0, sharing=False, arena_given=0, arena_best=0, arena=0, added_nodes=0, tiled_regions=0, extra_time_percent=0,
    bit_equal=False,
)  # fmt: skip
LARGE = 100 << 20  # a budget whose fiftieth is more than what a runtime may take for its books

# Budget, what the runtime takes for a plan of so many bytes, what is planned for in turn, and the heap that is kept;
# where a text stands instead, the refusal has it. No plan is below 1,000 bytes.
LOOPS: list[tuple[int, Callable[[int], int], list[int], int | str]] = [
    (10_000, lambda aim: aim, [10_000], 10_000),
    (10_000, lambda aim: aim - 1, [10_000], 9_999),
    # A constant on top: by the excess, 500, or by the ratio, 10,000 of 10,500; the ratio asks for less room here.
    (10_000, lambda aim: aim + 500, [10_000, 9_500], 10_000),
    # What grows with the plan: 20,000 of 10,000; by the excess nothing would be left, so the loop ends with the books.
    (10_000, lambda aim: 2 * aim, [10_000], 20_000),
    # A tenth on top: 11,000; less 1,000 is 9,000, by the ratio 9,090; 9,000 takes 9,900.
    (10_000, lambda aim: aim + aim // 10, [10_000, 9_000], 9_900),
    # Never less than 10,300 however little is planned for: four plans, and the books forgive the rest.
    (10_000, lambda aim: 10_300, [10_000, 9_700, 9_400, 9_100], 10_300),
    # The second plan takes more than the first, and the first is kept.
    (10_000, lambda aim: 10_100 if aim == 10_000 else 10_200, [10_000, 9_900, 9_700, 9_500], 10_100),
    # Below 1,000 there is no plan: the loop ends with what was measured.
    (1_200, lambda aim: 1_500, [1_200, 900], 1_500),
    (LARGE, lambda aim: LARGE + LARGE // 50, [LARGE, 102760448, 100663296, 98566144], LARGE + LARGE // 50),
    (LARGE, lambda aim: LARGE + LARGE // 50 + 1, [LARGE, 102760447, 100663294, 98566141],
     "the least that was measured is 106,954,753 bytes"),
    (10_000, lambda aim: 10_000 + BOOKS, [10_000], 10_000 + BOOKS),
    (10_000, lambda aim: 10_001 + BOOKS, [10_000], "in ONNX Runtime the least that was measured is 75,537 bytes"),
    (999, lambda aim: aim, [999], "the least arena that was found takes 1,000 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("budget", "takes", "aims", "expected"), LOOPS)
def test_a_plan_is_made_for_less_by_what_the_runtime_took_more(
    budget: int, takes: Callable[[int], int], aims: list[int], expected: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []

    def plan(model: ir.Model, asked: int, aim: int, seconds: float | None, progress: object) -> Budgeted:
        planned.append(aim)
        if aim < 1_000:
            raise BudgetNotKept(aim, 1_000)
        return Budgeted(model, structs.replace(RECORD, budget=asked, aim=aim), None)

    def measure(models: Sequence[ir.Model], *, contract: bool) -> tuple[Use, Use]:
        taken = takes(planned[-1])
        return Use(7, 7, (1.0, 2.0, 4.0)), Use(taken, taken, (2.0, 2.0, 6.0))

    monkeypatch.setattr(budgets, "_planned", plan)
    monkeypatch.setattr(budgets, "use_in_onnxruntime", measure)
    if isinstance(expected, str):
        with pytest.raises(BudgetNotKept, match=expected):
            keep_budget(MODEL, budget, verify_seconds=None)
    else:
        record = keep_budget(MODEL, budget, verify_seconds=None).record
        assert (record.budget, record.heap_before, record.heap) == (budget, 7, expected)
        assert record.slowdown_percent == pytest.approx(50), "the median of 2, 1 and 1.5 times as long"
        assert takes(record.aim) == expected
    assert planned == aims and len(aims) <= 1 + RETRIES


# Two branches: in file order two results of 1 KiB wait for each other, one branch after the other only one.
TEXT = """g (float[1,64] x) => (float[1,1] y) {
    a = MatMul(x, w) b = MatMul(x, w) c = ReduceSum<keepdims = 1>(a, axis) d = ReduceSum<keepdims = 1>(b, axis)
    y = Add(c, d)
}"""


def branches() -> ir.Model:
    return load(support.model(TEXT, w=np.ones((64, 256), np.float32), axis=np.array([1])))


def test_what_a_record_says_of_a_budget() -> None:
    told: list[str] = []
    record = keep_budget(branches(), 2048, verify_seconds=None, measure=False, progress=told.append).record
    assert record == BudgetRecord(
        budget=2048, sharing=False, arena_given=2112, arena_best=1152, arena=1152, added_nodes=0, tiled_regions=0,
        extra_time_percent=0.0, bit_equal=False, aim=2048,
    )  # fmt: skip
    assert told == ["ordering under the memory budget", "comparing bits"]


def test_nodes_that_a_budget_adds_are_counted_and_timed() -> None:
    draw = np.random.default_rng(0)
    weights = {
        name: draw.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (16, 512)), ("v", (512, 1024)), ("w2", (1024, 512)))
    }
    model = load(support.model(
        """g (float[1,16] x) => (float[1,512] y) {
            e = MatMul(x, w) s = MatMul(e, v) t = Softmax(s) u = MatMul(t, w2) r = Softmax(u) y = Mul(r, e)
        }""", **weights,
    ))  # fmt: skip
    told: list[str] = []
    done = keep_budget(model, 8 << 10, verify_seconds=None, measure=False, progress=told.append)
    again = [node for node in done.model.graph if node.op_type == "MatMul"]
    assert len(again) == 4 and done.record.added_nodes == 1 and len(model.graph) == 6
    # e reads and writes 34,880 bytes, which takes 1,744 ns; all six operators take 212,995.2.
    assert done.record.extra_time_percent == pytest.approx(100 * 1744 / 212_995.2)
    assert told[0] == "ordering under the memory budget" and told[-1] == "comparing bits"
    assert "looking for what to compute again under the budget" in told


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verification("different", reason="output 'y' differs"), "output 'y' differs"),
        (Verification("verified", max_abs=1e-7), r"an output differs by 1\.0e-07"),
        (Verification("verified", max_abs=0.0), None),
        (Verification("not run", reason="time was up"), None),
    ],
)
def test_a_verdict_of_another_bit_is_refused(
    verdict: Verification, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reference, "check", lambda reference, changed: verdict)
    if reason is not None:
        with pytest.raises(VerificationError, match=rf"does not give the same bits: {reason}\."):
            keep_budget(branches(), 2048, verify_seconds=10, measure=False)
        return
    done = keep_budget(branches(), 2048, verify_seconds=10, measure=False)
    equal = verdict.status == "verified"
    assert done.record.bit_equal is equal and done.not_compared == (None if equal else "time was up")


def test_a_model_whose_results_share_bytes_only_where_they_must() -> None:
    """Of three results of 4 KiB, two live at a time in bytes of their own, and one where they lie in place."""
    text = "g (float[1024] x) => (float[1024] y) { a = Sin(x) b = Cos(a) y = Neg(b) }"
    for budget, sharing, arena in ((8192, False, 8192), (8191, True, 4096)):
        done = keep_budget(load(support.model(text)), budget, verify_seconds=None, measure=False)
        record = done.record
        assert (record.sharing, record.arena, record.budget, record.aim) == (sharing, arena, budget, budget)
        support.assert_equal(support.model(text), to_proto(done.model), rtol=0, atol=0)
