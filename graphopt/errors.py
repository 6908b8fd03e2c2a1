"""The errors a user can meet: one base class, one subclass per door."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class GraphoptError(Exception):
    """Base of every error that graphopt raises for input or for a request it cannot serve."""


class ModelError(GraphoptError):
    """The input model is at fault: unreadable, incomplete, cyclic, or asking for an unknown opset."""


class OptionError(GraphoptError):
    """A request does not fit the model: an unknown input name, a shape of the wrong rank, an unknown pass."""


def _size(count: int) -> str:
    """Bytes as budgets are given, to a hundredth: 2.5 KiB."""
    power = min((max(count, 1).bit_length() - 1) // 10, 3)
    return f"{count / 1024**power:.2f}".rstrip("0").rstrip(".") + f" {('B', 'KiB', 'MiB', 'GiB')[power]}"


class BudgetNotKept(OptionError):
    """No plan was found that keeps a memory `budget`; `least` is the smallest arena that was found. Both in bytes."""

    def __init__(self, budget: int, least: int, what: str = "the least arena that was found takes") -> None:
        super().__init__(
            f"a memory budget of {_size(budget)} cannot be kept: {what} {_size(least)}, {_size(least - budget)} more; "
            f"{-(-least // 1024)}KiB would be kept."
        )
        self.budget, self.least = budget, least


class MissingExtra(GraphoptError):
    """What was asked for needs a library that the base installation leaves out; the sentence names the extra."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"this needs {library}, which is not installed: pip install 'graphopt[{extra}]'")


class SaveError(GraphoptError):
    """The output could not be written; what was there before still is."""


class VerificationError(GraphoptError):
    """No verified model could be made, or two models that should be equal are not."""


class BundleError(GraphoptError):
    """A compiled program that cannot be written, loaded, or called like this."""


class NotLowered(GraphoptError):
    """A node that no kernel computes. `nodes` are those that were lowered when it was found; empty: not known."""

    def __init__(self, message: str, *nodes: ir.Node) -> None:
        super().__init__(message)
        self.nodes = nodes
