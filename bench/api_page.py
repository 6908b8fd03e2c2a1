"""The page of the Python interface, docs/api.md, printed from the docstrings: `python -m bench.api_page`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import graphopt

HEAD = """# The Python interface

Printed from the docstrings: `python -m bench.api_page > docs/api.md`. Sizes are bytes. Whatever a model or a
request makes fail raises a subclass of `GraphoptError`. Programs that use it stand in [examples](examples/README.md).
"""
FUNCTIONS = (
    "optimize", "compile", "memory", "schedule", "verify", "first_divergence", "explain_rule", "explain_node", "load",
    "run", "profile", "machine", "certify", "check_bundle", "measure", "serve", "gradient",
    "train_step", "fit", "quantize", "simplify", "slim",
)  # fmt: skip


def page() -> str:
    """The whole page."""
    return "\n".join(_page()).rstrip() + "\n"


def _page() -> Iterator[str]:
    yield HEAD
    for name in FUNCTIONS:
        yield from _function(f"graphopt.{name}", getattr(graphopt, name), "##")
    yield "## What they take\n"
    yield "`Source`: a path, the bytes of a file, an open file, an `onnx.ModelProto` or an `onnx_ir.Model`.\n"
    yield "## What they give\n"
    others = [getattr(graphopt, name) for name in graphopt.__all__ if name not in (*FUNCTIONS, "Source")]
    for kind in others:
        if not issubclass(kind, Exception):
            yield from _class(kind)
    yield "## Errors\n"
    for kind in others:
        if issubclass(kind, Exception):
            yield f"- `{kind.__name__}`: {_prose(kind)}"


def _class(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}\n\n{_prose(kind)}\n"
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        held = member.func if hasattr(member, "func") else member
        if isinstance(held, property) or hasattr(member, "func"):
            yield f"- `{name}`: {_prose(held)}"
        elif inspect.isfunction(held):
            yield f"- `{name}{_signature(held)}`: {_prose(held)}"
    yield ""


def _function(name: str, function: object, level: str) -> Iterator[str]:
    assert callable(function), "the interface's functions"
    yield f"{level} {name}\n"
    parameters = inspect.signature(function).parameters.values()
    lines = [f"    {_parameter(one)}," for one in parameters]
    star = next((at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
    if star is not None:
        lines.insert(star, "    *,")
    yield "\n".join(["```python", f"{name}(", *lines, ")", "```\n"])
    yield f"{inspect.cleandoc(inspect.getdoc(function) or '')}\n"


def _parameter(one: inspect.Parameter) -> str:
    kind = "" if one.annotation is one.empty else f": {one.annotation}"
    default = "" if one.default is one.empty else f" = {one.default!r}"
    stars = "**" if one.kind is one.VAR_KEYWORD else ""
    return f"{stars}{one.name}{kind}{default}"


def _signature(function: object) -> str:
    assert callable(function), "a method"
    names = [one for name, one in inspect.signature(function).parameters.items() if name != "self"]
    return f"({', '.join(_parameter(one) for one in names)})"


def _prose(thing: object) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(thing) or "")


if __name__ == "__main__":
    sys.stdout.write(page())
