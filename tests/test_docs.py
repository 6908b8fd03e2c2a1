"""What the documents say is so: options exist, links lead somewhere, the Python example runs, names are exported."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from click import Group
from click.testing import CliRunner

import graphopt
from bench import api_page
from graphopt import cli
from graphopt.cli import app
from graphopt.passes import pipeline
from graphopt.report import rules_page
from memplan.__main__ import app as problems
from scheduler.__main__ import app as schedules
from tests import support

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
COMMANDS = tuple(name for name in cli.COMMANDS if name != "completion")


PROBLEMS = ((problems, "pack"), (problems, "remat"), (problems, "tiers"), (schedules, "solve"), (schedules, "check"))


def _help(command: str) -> str:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def _problem_help(library: Group, command: str) -> str:
    result = CliRunner().invoke(library, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_are_named_exist(page: Path) -> None:
    offered = " ".join([*(_help(command) for command in COMMANDS), *(_problem_help(*one) for one in PROBLEMS)])
    for option in set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", page.read_text())):
        assert option in offered, f"{page.name} names {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_targets_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)", text)):
        assert f"\n{target}:" in makefile
    for name in set(re.findall(r"`((?:graphopt|kernels|tests|bench|models|docs)/[\w/]+\.py)`", text)):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_site_has_every_page_once() -> None:
    """Pages of the repository, at the places that `make site` copies them to."""
    named = re.findall(r"^  - [^:]+: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "models" / "README.md"}
    assert sorted(named) == sorted(str(page.relative_to(ROOT)) for page in pages)


def test_every_example_is_on_their_page() -> None:
    page = (ROOT / "docs" / "examples" / "README.md").read_text()
    for example in (ROOT / "docs" / "examples").glob("*.py"):
        assert f"[{example.name}]({example.name})" in page


def test_files_that_the_architecture_names_exist() -> None:
    """As paths from the root, from graphopt, or as a name of one of its files."""
    files = {path.name for path in (ROOT / "graphopt").rglob("*.py")}
    for name in set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "graphopt")) or name in files, name


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert f"graphopt {command}" in text


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = support.model("g (float[n,2] x) => (float[n,2] y) { a = Identity(x) y = Relu(a) }")
    onnx.save(proto, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(example, {})
    assert capsys.readouterr().out == "2 -> 1 verified\n"
    assert (tmp_path / "model.opt.onnx").exists()


def test_the_examples_of_the_kernels_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kernels.md").read_text(), re.S):
        exec(example, names)
    assert "for i" in capsys.readouterr().out


def test_exported_names() -> None:
    assert sorted(graphopt.__all__) == [
        "BudgetNotKept",
        "BundleError",
        "Census",
        "Certificate",
        "Compiled",
        "Divergence",
        "FitResult",
        "GradientResult",
        "GraphoptError",
        "MachineRecord",
        "MemoryReport",
        "MissingExtra",
        "ModelError",
        "NotLowered",
        "OptimizeResult",
        "Optimizer",
        "OptionError",
        "ProfileReport",
        "QuantizeResult",
        "SaveError",
        "ScheduleReport",
        "Source",
        "StepResult",
        "Verification",
        "VerificationError",
        "certify",
        "check_bundle",
        "compile",
        "explain_node",
        "explain_rule",
        "first_divergence",
        "fit",
        "gradient",
        "load",
        "machine",
        "measure",
        "memory",
        "optimize",
        "profile",
        "quantize",
        "run",
        "schedule",
        "serve",
        "simplify",
        "slim",
        "train_step",
        "verify",
    ]


def test_every_rule_draws_what_it_does() -> None:
    for rule in graphopt.passes.pipeline.rules():
        assert "-->" in rule.doc, rule.name


def test_rule_names_are_unique() -> None:
    names = [rule.name for rule in graphopt.passes.pipeline.rules()]
    assert len(names) == len(set(names))


def test_the_page_of_rules_is_what_the_docstrings_say() -> None:
    said = (ROOT / "docs" / "rules.md").read_text()
    assert said == rules_page.page(), "print it again: python -m graphopt.report.rules_page > docs/rules.md"


def test_the_page_of_the_interface_is_what_the_docstrings_say() -> None:
    said = (ROOT / "docs" / "api.md").read_text()
    assert said == api_page.page(), "print it again: python -m bench.api_page > docs/api.md"
    assert all(f"`{name}`" in said or f"{name}(" in said or f"### {name}" in said for name in graphopt.__all__)


def test_the_page_of_rules_has_every_rule_and_pass() -> None:
    titles = re.findall(r"^###? (.+)$", rules_page.page(), re.M)
    named = [name for title in titles for name in title.split(", ")]
    for name in (*pipeline.names(), *(rule.name for rule in pipeline.rules())):
        assert name in named
