"""Predicates over measured numbers: true, false, `ALIKE`, or None where what is known of the numbers allows both.

A number is known by an interval at 95 % confidence, or by a list over repeats. One measurement alone settles nothing:
its interval has no ends. Two numbers are alike if neither is known to be larger and they differ by less than a tenth of
the larger.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
ALIKE = "no difference"
LITTLE = 0.1  # of the larger of two numbers

Answer = bool | str | None


class Interval(NamedTuple):
    """What is known of a number: exact where both ends are equal."""

    low: float
    high: float


Sample = NDArray[np.float64]
Value = Interval | Sample
Lookup = Callable[[str, str], Value]  # of a notebook and its key

NOTHING = Interval(-math.inf, math.inf)


def exactly(number: float) -> Interval:
    return Interval(float(number), float(number))


def known(value: Value) -> Interval:
    """The interval of a number; of a sample, Student's for its mean."""
    if isinstance(value, Interval):
        return value
    if len(value) < 2:
        return NOTHING
    if not np.ptp(value):
        return exactly(value[0])
    return Interval(*stats.ttest_1samp(value, 0).confidence_interval(CONFIDENCE))


def combined(function: Callable[..., object], *values: Value) -> Value:
    """A function of numbers that is monotone in each: seed by seed, or by the ends of their intervals."""
    samples = [value for value in values if not isinstance(value, Interval)]
    intervals = [value for value in values if isinstance(value, Interval)]
    if samples and all(interval.low == interval.high for interval in intervals):
        if len({len(sample) for sample in samples}) > 1:
            raise ValueError("numbers over seeds that are combined must be as many, except where they are compared")
        seeds = [np.full(len(samples[0]), v.low) if isinstance(v, Interval) else v for v in values]
        return np.array([function(*numbers) for numbers in zip(*seeds, strict=True)], dtype=float)
    ends = np.meshgrid(*(known(value) for value in values))
    with np.errstate(all="ignore"):  # of ends at infinity
        reached = np.array(
            [function(*numbers) for numbers in zip(*(end.flat for end in ends), strict=True)], dtype=float
        )
    return NOTHING if np.isnan(reached).any() else Interval(float(reached.min()), float(reached.max()))


def difference(a: Value, b: Value) -> Value:
    """a − b: by seed where there are as many of both, else by Welch's interval."""
    if isinstance(a, Interval) or isinstance(b, Interval) or len(a) == len(b):
        return combined(operator.sub, a, b)
    if min(len(a), len(b)) < 2:
        return NOTHING
    if not np.ptp(a) and not np.ptp(b):
        return exactly(a[0] - b[0])
    return Interval(*stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE))


def quotient(a: Value, b: Value) -> Value:
    """a / b, of which nothing is known where b may be 0."""
    by_seed = not isinstance(b, Interval) and (not isinstance(a, Interval) or a.low == a.high)
    low, high = (b.min(), b.max()) if by_seed else known(b)
    if (by_seed and not np.all(b)) or low == high == 0:
        raise ZeroDivisionError("a predicate must not divide by 0")
    return NOTHING if low <= 0 <= high and not by_seed else combined(operator.truediv, a, b)


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


def effect(after: Value, before: Value) -> Interval:
    """How much a change of setting changes a number, whatever the direction."""
    return known(size(known(difference(after, before))))


ARITHMETIC: dict[type, Callable[..., Value]] = {
    ast.Add: partial(combined, operator.add),
    ast.Sub: difference,
    ast.Mult: partial(combined, operator.mul),
    ast.Div: quotient,
}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "min": partial(combined, min),
    "max": partial(combined, max),
    "abs": size,
    "between": between,
    "effect": effect,
    "estimate": estimate,
}


def number(node: ast.expr, look_up: Lookup) -> Value:
    """The number that a part of an expression stands for."""
    match node:
        case ast.Constant(value=int() | float() as constant):
            return exactly(constant)
        case ast.Attribute(value=ast.Name(id=notebook), attr=key):
            return look_up(notebook, key)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return combined(operator.neg, number(operand, look_up))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in ARITHMETIC:
            return ARITHMETIC[type(operation)](number(left, look_up), number(right, look_up))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(number(argument, look_up) for argument in arguments))
    raise ValueError(
        f"a predicate must be made of numbers, keys such as notebook.key, + - * /, {', '.join(FUNCTIONS)}, "
        f"comparisons, and, or, not; got {ast.unparse(node)!r}"
    )


def compared(comparison: ast.cmpop, a: Value, b: Value, *, measured: bool) -> Answer:
    """Whether a < b and the like. Where the interval of the difference holds both answers: `ALIKE` if both numbers are
    `measured` and the whole interval is below a tenth of the larger, else None.
    """
    if isinstance(comparison, ast.Gt | ast.GtE):
        a, b = b, a
    gap = known(difference(b, a))
    strict = isinstance(comparison, ast.Lt | ast.Gt)
    if gap.low > 0 or (gap.low == 0 and not strict):
        return True
    if gap.high < 0 or (gap.high == 0 and strict):
        return False
    larger = max(abs(sum(known(value)) / 2) for value in (a, b)) if measured else 0.0
    return ALIKE if max(-gap.low, gap.high) < LITTLE * larger < math.inf else None


def every(answers: Sequence[Answer]) -> Answer:
    """Kleene's "and", where `ALIKE` is between true and unknown."""
    return next((one for one in (False, None, ALIKE) if one in answers), True)


def inverse(answer: Answer) -> Answer:
    return not answer if isinstance(answer, bool) else answer


def truth(node: ast.expr, look_up: Lookup) -> Answer:
    """Whether a part of an expression is true."""
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return every([truth(part, look_up) for part in parts])
        case ast.BoolOp(op=ast.Or(), values=parts):
            return inverse(every([inverse(truth(part, look_up)) for part in parts]))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return inverse(truth(operand, look_up))
        case ast.Compare(left=left, ops=ops) if all(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in ops):
            sides = [left, *node.comparators]
            values = [number(part, look_up) for part in sides]
            measured = [isinstance(part, ast.Attribute | ast.Call) for part in sides]
            pairs = zip(
                ops, zip(values, measured, strict=True), zip(values[1:], measured[1:], strict=True), strict=False
            )
            return every([compared(op, a, b, measured=of_a and of_b) for op, (a, of_a), (b, of_b) in pairs])
    raise ValueError(f"a predicate must compare by <, <=, > or >=, with and, or, not; got {ast.unparse(node)!r}")


def decide(expression: str, look_up: Lookup) -> Answer:
    """True, False, `ALIKE`, or None where an expression such as "notebook.a > 2 * notebook.b" is not settled."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"a predicate must be an expression, got {expression!r}: {error.msg}") from None
    return truth(tree, look_up)


def keys(expression: str) -> list[tuple[str, str]]:
    """The notebooks and keys that an expression asks for."""
    asked: list[tuple[str, str]] = []

    def note(notebook: str, key: str) -> Value:
        asked.append((notebook, key))
        return NOTHING

    decide(expression, note)
    return list(dict.fromkeys(asked))
