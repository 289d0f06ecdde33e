"""Predicates over measured numbers: true, false, or unknown where what is known of the numbers allows both.

A number is known by an interval at 95 % confidence, or measured several times, by a list over seeds. One measurement
alone settles nothing: its interval has no ends.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Interval:
    """What is known of a number: exact where both ends are equal."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high


Sample = NDArray[np.float64]
Value = Interval | Sample
Lookup = Callable[[str, str], Value]

NOTHING = Interval(-math.inf, math.inf)


def exactly(number: float) -> Interval:
    return Interval(number, number)


def of_mean(sample: Sample) -> Interval:
    """Student's interval for the mean of what was measured."""
    if len(sample) < 2:
        return NOTHING
    if not np.ptp(sample):
        return exactly(float(sample[0]))
    return Interval(*stats.ttest_1samp(sample, 0).confidence_interval(CONFIDENCE))


def known(value: Value) -> Interval:
    return value if isinstance(value, Interval) else of_mean(value)


def difference(a: Value, b: Value) -> Value:
    """a − b: by seed where there are as many of both, else by Welch's interval."""
    if not (isinstance(a, Interval) or isinstance(b, Interval)) and len(a) != len(b):
        if min(len(a), len(b)) < 2:
            return NOTHING
        if not np.ptp(a) and not np.ptp(b):
            return exactly(float(a[0] - b[0]))
        return Interval(*stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE))
    return combined(operator.sub, a, b)


def combined(of: Callable[..., object], *values: Value) -> Value:
    """A function of numbers that is monotone in each: seed by seed, or by the ends of their intervals."""
    samples = [value for value in values if not isinstance(value, Interval)]
    if samples and all(not isinstance(value, Interval) or value.exact for value in values):
        if len({len(sample) for sample in samples}) > 1:
            raise ValueError("numbers over seeds that are combined must be as many, except where they are compared")
        each = zip(*(np.broadcast_to(known_or(value), len(samples[0])) for value in values), strict=True)
        return np.array([of(*one) for one in each], dtype=float)
    ends: list[list[float]] = [[]]
    for value in values:
        at = known(value)
        ends = [[*before, end] for before in ends for end in (at.low, at.high)]
    with np.errstate(all="ignore"):  # of ends at infinity
        reached = np.array([of(*map(np.float64, end)) for end in ends], dtype=float)
    return NOTHING if np.isnan(reached).any() else Interval(float(reached.min()), float(reached.max()))


def known_or(value: Value) -> float | Sample:
    return value.low if isinstance(value, Interval) else value


def quotient(a: Value, b: Value) -> Value:
    """a / b, of which nothing is known where b may be 0."""
    if isinstance(b, Interval) or (isinstance(a, Interval) and not a.exact):
        at = known(b)
        if at == exactly(0):
            raise ZeroDivisionError("a predicate must not divide by 0")
        if at.low <= 0 <= at.high:
            return NOTHING
    elif not b.all():
        raise ZeroDivisionError("a predicate must not divide by 0")
    return combined(operator.truediv, a, b)


def size(a: Value) -> Value:
    """|a|, whose least is 0 where an interval holds 0."""
    if isinstance(a, Interval) and a.low < 0 < a.high:
        return Interval(0, max(-a.low, a.high))
    return combined(abs, a)


def point(value: Value) -> float:
    """The number itself, where its interval is given beside it."""
    return value.low if isinstance(value, Interval) else float(value.mean())


def between(low: Value, high: Value) -> Interval:
    """A number by the ends of its own interval."""
    return Interval(point(low), point(high))


def estimate(mean: Value, error: Value) -> Interval:
    """A number by its estimate and standard error."""
    margin = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * point(error)
    return Interval(point(mean) - margin, point(mean) + margin)


CALLED: dict[str, Callable[..., Value]] = {
    "min": lambda *values: combined(min, *values),
    "max": lambda *values: combined(max, *values),
    "abs": size,
    "between": between,
    "estimate": estimate,
}


def number(node: ast.expr, look_up: Lookup) -> Value:
    """The number that a part of an expression stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return exactly(float(node.value))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return look_up(node.value.id, node.attr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return combined(operator.neg, number(node.operand, look_up))
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        a, b = number(node.left, look_up), number(node.right, look_up)
        if isinstance(node.op, ast.Sub):
            return difference(a, b)
        return quotient(a, b) if isinstance(node.op, ast.Div) else combined(ARITHMETIC[type(node.op)], a, b)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLED and not node.keywords:
        return CALLED[node.func.id](*(number(one, look_up) for one in node.args))
    raise ValueError(
        f"a predicate must be made of numbers, keys such as notebook.key, + - * /, {', '.join(CALLED)}, comparisons, "
        f"and, or, not; got {ast.unparse(node)!r}"
    )


def compared(of: ast.cmpop, a: Value, b: Value) -> bool | None:
    """Whether a < b and the like, or None where the interval of the difference holds both answers."""
    if isinstance(of, ast.Gt | ast.GtE):
        a, b = b, a
    gap = known(difference(b, a))
    if isinstance(of, ast.Lt | ast.Gt):
        return True if gap.low > 0 else False if gap.high <= 0 else None
    return True if gap.low >= 0 else False if gap.high < 0 else None


def every(answers: Sequence[bool | None]) -> bool | None:
    """Kleene's "and"."""
    return False if False in answers else None if None in answers else True


def inverse(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def truth(node: ast.expr, look_up: Lookup) -> bool | None:
    """Whether a part of an expression is true."""
    if isinstance(node, ast.BoolOp):
        answers = [truth(one, look_up) for one in node.values]
        return every(answers) if isinstance(node.op, ast.And) else inverse(every([inverse(one) for one in answers]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return inverse(truth(node.operand, look_up))
    if isinstance(node, ast.Compare) and all(isinstance(one, COMPARED) for one in node.ops):
        values = [number(one, look_up) for one in (node.left, *node.comparators)]
        return every([compared(of, a, b) for of, a, b in zip(node.ops, values, values[1:], strict=False)])
    raise ValueError(f"a predicate must compare by <, <=, > or >=, with and, or, not; got {ast.unparse(node)!r}")


def parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"a predicate must be an expression, got {expression!r}: {error.msg}") from None


def decide(expression: str, look_up: Lookup) -> bool | None:
    """True, False, or None where it is not settled.

    Args:
        expression: such as "notebook.a > 2 * notebook.b and not notebook.c < 1".
        look_up: the value of a notebook's key.
    """
    return truth(parsed(expression), look_up)


def keys(expression: str) -> list[tuple[str, str]]:
    """What an expression asks for."""
    found: list[tuple[str, str]] = []

    def note(notebook: str, key: str) -> Value:
        found.append((notebook, key))
        return NOTHING

    decide(expression, note)
    return found
