"""Log of Softmax, which loses small probabilities, as one LogSoftmax, which does not."""

from __future__ import annotations

from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, rule


@rule(op("Log", op("Softmax", var("x"), name="softmax")), level=2)
def log_of_softmax(match: Match) -> Replacement:
    """Log(Softmax(x))  -->  LogSoftmax(x)

    The two operators have had the same meaning of `axis` in every opset. Where Softmax underflows to 0 and its Log to
    -inf, LogSoftmax gives the right finite number.
    """
    return match.op("LogSoftmax", match["x"], like=match.node("softmax"))


RULES: tuple[Rule, ...] = (log_of_softmax,)
