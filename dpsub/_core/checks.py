"""Checks of the arguments of public functions, and the wording of their errors."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

NO_NUMBERS = (bool, np.timedelta64)  # though Python's and NumPy's class hierarchies say so
ADJACENCIES = ("substitute", "add_remove", "zero_out")
MEANT = {  # what people type, and how dpsub calls it
    "sigma": "noise_multiplier", "clip": "max_grad_norm", "clipping_norm": "max_grad_norm", "q": "sample_rate",
    "subsampling": "sample_rate", "lr": "learning_rate", "eps": "epsilon", "confidence": "alpha", "trials": "runs",
    "rng": "seed", "random_state": "seed", "neighbouring": "adjacency", "relation": "adjacency",
    "replace": "substitute", "replace_one": "substitute", "swap": "substitute", "change": "substitute",
    "bounded": "substitute", "label": "substitute", "attribute": "substitute", "add": "add_remove",
    "remove": "add_remove", "unbounded": "add_remove", "membership": "add_remove", "insert": "add_remove",
    "delete": "add_remove", "zero": "zero_out", "null": "zero_out", "replace_special": "zero_out", "shuffle": "epochs",
    "fixed_size": "without_replacement", "gaussian": "gdp", "fdp": "gdp", "prv": "pld", "accountant": "pld",
    "clopper_pearson": "dp", "betting": "bets", "wealth": "bets",
}  # fmt: skip
SAMPLINGS = ("poisson", "epochs", "without_replacement")
SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
WHOLE = 1e-3  # how far 1 / sample_rate may be from a whole number of steps, absolute


def choice(name: str, value: object, options: Sequence[str]) -> str:
    """The value, if it is one of the options."""
    if isinstance(value, str) and value in options:
        return value
    listed = ", ".join(repr(option) for option in options)
    raise ValueError(f"{name} must be one of {listed}, got {value!r}{did_you_mean(value, options)}")


def adjacency(value: object) -> str:
    return choice("adjacency", value, ADJACENCIES)


def did_you_mean(value: object, known: Sequence[str]) -> str:
    """Which of the known names a value was meant to be, as the end of an error; "" if none of them is near."""
    words = {word: meant for word, meant in MEANT.items() if meant in known} | {name: name for name in known}
    near = get_close_matches(re.sub("[^a-z]+", "_", value.lower()), words, 1) if isinstance(value, str) else ()
    return f": did you mean {words[near[0]]!r}?" if near else ""


def text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
    if not drawable(value):
        raise ValueError(f"{name} must be a text without NUL and halves of characters, got {value!r}")
    return value


def drawable(text: str) -> bool:
    """Whether a text can be drawn and written to a file. Python's texts may hold halves of characters (surrogates)."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def path(name: str, value: object) -> Path:
    """The value as a path, with the user's home for "~"."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path in the file system, got {value!r}")
    return Path(value).expanduser()


def flag(name: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")


def real(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """The value as a float, if it is a finite number within the given bounds."""
    limits = zip(SIGNS, (above, at_least, below, at_most), strict=True)
    bounds = [(sign, limit) for sign, limit in limits if limit is not None]
    told = [f"{sign} {limit:g}" for sign, limit in bounds]
    if isinstance(value, NO_NUMBERS) or not isinstance(value, numbers.Real):
        expected = f"a number {' and '.join(told)}" if told else "a finite number"
        raise ValueError(f"{name} must be {expected}, got {value!r}{_way_out(value)}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be {' and '.join(['finite', *told])}, got {value!r}")
    if not all(SIGNS[sign](number, limit) for sign, limit in bounds):
        raise ValueError(f"{name} must be {' and '.join(told)}, got {value!r}")
    return number


def whole(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """The value as an int, if it is a whole number within the given bounds."""
    expected = f">= {at_least}" + ("" if at_most is None else f" and <= {at_most}")
    number = not isinstance(value, NO_NUMBERS) and isinstance(value, numbers.Real)
    if not number or value % 1 != 0:  # NaN for infinity and NaN
        raise ValueError(f"{name} must be a whole number {expected}, got {value!r}{_way_out(value)}")
    if value < at_least or (at_most is not None and value > at_most):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return int(value)


def _way_out(value: Any) -> str:
    """What to do with an array or a tensor where a number is needed."""
    single = getattr(value, "ndim", None) == 0 and not isinstance(value, np.generic) and not np.ma.isMaskedArray(value)
    return ": give its .item()" if single else ""


def instance(name: str, value: Any, *, of: Any, called: str) -> Any:
    if not isinstance(value, of):
        raise ValueError(f"{name} must be {called}, got a {type(value).__name__}")
    return value


def no_mask(name: str, values: object) -> None:
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not be masked: NumPy would use the values under the mask; leave them out")


def steps_an_epoch(sample_rate: float) -> int:
    """1 / sample_rate, if it is a whole number, as `sampling="epochs"` needs it."""
    inverse = min(1 / sample_rate, 1e18)
    steps = round(inverse)
    if abs(inverse - steps) > WHOLE:
        fewer = math.floor(inverse)
        raise ValueError(
            f"sample_rate must be 1 / (steps an epoch) with sampling='epochs', got {sample_rate:g}: give 1/{fewer} or "
            f"1/{fewer + 1}, whichever number of steps an epoch has. If the steps do not fill an epoch, as when "
            "gradients are accumulated across its end, one step may use a record twice: this is not covered"
        )
    return steps


def probability(name: str, value: Any) -> float:
    return real(name, value, above=0, below=1)


def rates(name: str, values: Any) -> NDArray[np.float64]:
    """An array of probabilities, 0 and 1 included."""
    return array(name, values, at_least=0, at_most=1)


def array(
    name: str,
    value: Any,
    *,
    shape: Sequence[int | str | EllipsisType] | None = None,
    kind: type[np.floating[Any] | np.integer[Any]] = np.float64,
    finite: bool = True,
    at_least: float | None = None,
    at_most: float | None = None,
) -> NDArray[Any]:
    """The value as an array of real numbers. It is no copy where none is needed.

    Give the value as it came: `np.asarray` or `np.atleast_1d` before would hide what it was from the errors.

    Args:
        name: how errors name the value: the argument, or "train's scores".
        shape: for each dimension its size, or a name if any size will do: ("runs", 3). `...` at the end stands for any
            further dimensions. None allows any shape.
        kind: of the result. An integer kind asks for whole numbers, which may come as floats. What a narrow float
            cannot hold is not finite.
        finite: False allows infinity. NaN is never allowed: each comparison with it is false, which reads as an answer.
        at_least, at_most: bounds of all numbers.

    >>> array("labels", [0.0, 2.0], shape=("records",), kind=np.int64, at_least=0)
    array([0, 2])
    >>> array("scores", None, shape=("runs",))
    Traceback (most recent call last):
    ValueError: scores must be finite numbers, got None
    """
    no_mask(name, value)
    in_whole = issubclass(kind, np.integer)
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", at_least), ("<=", at_most)) if bound is not None]
    narrow = "" if np.dtype(kind).itemsize == 8 else f" in {np.dtype(kind)}"
    noun = "whole numbers" if in_whole else f"finite numbers{narrow}" if finite else "numbers without NaN"
    expected = f"{name} must be {' '.join([noun, ' and '.join(bounds)]).strip()}"
    try:
        given = np.asarray(value)
    except (TypeError, RuntimeError) as error:  # torch says what to do: detach(), cpu() or to_dense()
        raise ValueError(f"{expected}, got a {type(value).__name__}: {error}") from None
    except ValueError:
        raise ValueError(f"{expected}, got rows of different lengths") from None
    if given.size and given.dtype.kind not in "biuf":
        what = f"dtype {given.dtype}" if hasattr(value, "dtype") else repr(value)
        raise ValueError(f"{expected}, got {what if len(what) <= 80 else what[:80] + '…'}")
    if shape is not None and not _fits(given.shape, shape):
        sizes = ", ".join("..." if size is ... else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({sizes}{',' * (len(shape) == 1)}), got {given.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(kind, copy=False)
    # A comparison with NaN is false: so these say what is right, and not what is wrong.
    right = found == given if in_whole else np.isfinite(found) if finite else ~np.isnan(found)
    right &= found >= (-np.inf if at_least is None else at_least)
    right &= found <= (np.inf if at_most is None else at_most)
    if not right.all():
        many = f" ({np.sum(~right)} of {right.size} values)" if right.ndim else ""
        raise ValueError(f"{expected}, got {given[~right][0]}{many}")
    return found


def _fits(sizes: tuple[int, ...], shape: Sequence[int | str | EllipsisType]) -> bool:
    named = [size for size in shape if size is not ...]
    enough = len(sizes) >= len(named) if len(named) < len(shape) else len(sizes) == len(named)
    return enough and all(isinstance(want, str) or want == size for want, size in zip(named, sizes, strict=False))


def several(expected: str, value: Any) -> list[Any]:
    """The entries of a sequence. Texts, mappings and sets are none."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set):
        raise ValueError(f"{expected}, got {value!r}")
    return list(value)


def history(value: Any, name: str = "history", beside: str = "") -> list[tuple[float, float, int]]:
    """Phases of (noise_multiplier, sample_rate, steps), as Opacus's accountants record them.

    `beside` says what else the argument may be.
    """
    expected = (
        f"{name} must be {beside}a sequence of (noise_multiplier, sample_rate, steps), one or more, such as "
        "[(1.1, 0.01, 1000)]"
    )
    phases = several(expected, value)
    if not phases:
        raise ValueError(f"{expected}, got none: no step has been taken yet")
    checked = []
    for i, phase in enumerate(phases):
        if np.shape(phase) != (3,):
            raise ValueError(f"{expected}, got {phase!r} at place {i}")
        try:
            names = ("noise_multiplier", "sample_rate", "steps")
            checked.append(tuple(ARGUMENTS[name](name, value) for name, value in zip(names, phase, strict=True)))
        except ValueError as error:
            raise ValueError(f"{name}[{i}]: {error}") from None
    return checked


Check = Callable[[str, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


def checked(*names: str, **ranges: Check) -> Callable[[F], F]:
    """Check arguments of a function before it runs. It is given what the checks return.

    An argument that is its own default is not checked. A misspelt name is answered with the one that was meant.

    Args:
        names: arguments that mean the same everywhere, checked as `ARGUMENTS` says.
        ranges: checks of this function's own, by argument; those of `ARGUMENTS` come before them.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        tests = _tests(names, ranges)

        @functools.wraps(function)
        def with_checks(*args: Any, **kwargs: Any) -> Any:
            if not signature.parameters.keys() >= kwargs.keys():
                _refuse_unknown(function, kwargs)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # Python's own words for what is missing
            given = bound.arguments
            for name, test in tests:
                if name in given and given[name] is not signature.parameters[name].default:
                    given[name] = test(name, given[name])
            return function(*bound.args, **bound.kwargs)

        return cast(F, with_checks)

    return decorate


def _refuse_unknown(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Name what is no argument of a function, nor a key of the `TypedDict` that its last one unpacks."""
    parameters = inspect.signature(function, eval_str=True).parameters
    known, last = [*parameters], [*parameters.values()][-1]
    if last.kind is last.VAR_KEYWORD:
        known[-1:] = [key for typed in get_args(last.annotation) for key in typed.__annotations__]
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known) or f": it takes {', '.join(known)}"
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{meant}")


def check_fields(record: object, *names: str, **ranges: Check) -> None:
    """Check fields of a frozen record in its `__post_init__`, as `checked` does arguments."""
    for name, test in _tests(names, ranges):
        object.__setattr__(record, name, test(name, getattr(record, name)))


def _tests(names: Sequence[str], ranges: Mapping[str, Check]) -> list[tuple[str, Check]]:
    return [
        (name, test)
        for name in dict.fromkeys([*names, *ranges])
        for test in (ARGUMENTS.get(name), ranges.get(name))
        if test
    ]


ARGUMENTS: dict[str, Check] = {
    "noise_multiplier": partial(real, above=0),
    "sample_rate": partial(real, above=0, at_most=1),
    "steps": whole,
    "delta": probability,
    "adjacency": lambda name, value: adjacency(value),
    "sampling": partial(choice, options=SAMPLINGS),
    "seed": partial(whole, at_least=0),
    "max_grad_norm": partial(real, above=0),
    "learning_rate": partial(real, above=0),
    "alpha": partial(real, above=1e-12, below=0.5),  # floating-point tails are not exact far below
    "runs": whole,
    "repeats": whole,
    "folds": whole,
    "progress": flag,
    "n_train": partial(whole, at_least=2),
    "n_aux": partial(whole, at_least=0),
}
"""Arguments that mean the same in all of dpsub, with their checks."""
