"""`python -m kernels.ptx run`: a file of PTX, a file that describes the launch, faults and counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernels.ptx.__main__ import app, main
from kernels.ptx.machine.launching import ORDERS
from tests.kernels.ptx.machine.kernels import entry

LAUNCH = {
    "kernel": "k", "blocks": [2], "threads": [32], "arguments": ["x", "y"],
    "buffers": {"x": {"type": "f32", "count": 32, "seed": 1, "constant": True}, "y": {"type": "f32", "count": 32}},
}  # fmt: skip
RIGHT = """ add.s64 %d5, %d0, %d20; ld.global.b32 %r2, [%d5]; add.s64 %d6, %d1, %d20;
 setp.ne.b32 %p1, %r1, 0; @%p1 bra $E; st.global.b32 [%d6], %r2;\n$E:"""
WRONG = RIGHT.replace("@%p1 bra $E; ", "")


def files(folder: Path, body: str, launch: object = LAUNCH) -> list[str]:
    (folder / "k.ptx").write_text(entry(body, 2))
    (folder / "launch.json").write_text(json.dumps(launch))
    return ["run", str(folder / "k.ptx"), str(folder / "launch.json")]


def test_a_kernel_without_faults(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, files(tmp_path, RIGHT))
    assert done.exit_code == 0
    assert [f"{order}: no faults" in done.output for order in ORDERS] == [True] * 5
    assert "global read: 256 bytes by 2 accesses, 8 transactions where 8 would do" in done.output


def test_a_race_is_printed_and_is_the_exit_status(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*files(tmp_path, WRONG), "--order", "in order"])
    assert done.exit_code == 1
    assert "in order: 1 fault\n  race: line" in done.output and "reversed" not in done.output
    done = CliRunner().invoke(app, [*files(tmp_path, WRONG), "--json"])
    printed = json.loads(done.output)
    assert printed["faults"]["random"][0]["kind"] == "race" and printed["tally"]["instructions"]["ret"] == 2


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({**LAUNCH, "arguments": ["x", "z"]}, "'z' is none of the buffers: x, y"),
        ({**LAUNCH, "blocks": []}, "one to three dims, not 0"),
        ({**LAUNCH, "what": 1}, "cannot be read"),
        ({**LAUNCH, "kernel": "other"}, "has no entry 'other'; it has k"),
    ],
)
def test_what_is_refused_is_one_sentence(
    tmp_path: Path, launch: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ptx", *files(tmp_path, RIGHT, launch)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and said in capsys.readouterr().err
