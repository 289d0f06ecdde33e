"""Checks of the arguments of public functions, and the wording of their errors."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from functools import partial
from types import EllipsisType
from typing import Any, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

SIGNS: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "above": (">", operator.gt), "at_least": (">=", operator.ge), "below": ("<", operator.lt),
    "at_most": ("<=", operator.le),
}  # fmt: skip
ADJACENCIES = ("substitute", "add_remove", "zero_out")
MEANT = {  # what people type, and how dpsub calls it
    "sigma": "noise_multiplier", "clip": "max_grad_norm", "q": "sample_rate", "subsampling": "sample_rate",
    "lr": "learning_rate", "eps": "epsilon", "confidence": "alpha", "random_state": "seed", "replace": "substitute",
    "replace_one": "substitute", "swap": "substitute", "bounded": "substitute", "label": "substitute",
    "attribute": "substitute", "add": "add_remove", "remove": "add_remove", "unbounded": "add_remove",
    "membership": "add_remove", "zero": "zero_out", "shuffle": "epochs", "fixed_size": "without_replacement",
    "gaussian": "gdp", "prv": "pld", "accountant": "pld", "clopper_pearson": "dp", "betting": "bets", "wealth": "bets",
}  # fmt: skip


def choice(name: str, value: object, options: Sequence[str]) -> str:
    """The value, if it is one of the options."""
    if isinstance(value, str) and value in options:
        return value
    listed = ", ".join(repr(option) for option in options)
    raise ValueError(f"{name} must be one of {listed}, got {value!r}{did_you_mean(value, options)}")


def did_you_mean(value: object, known: Sequence[str]) -> str:
    """Which of the known names a value was meant to be, as the end of an error; "" if none of them is near."""
    words = {word: meant for word, meant in MEANT.items() if meant in known} | {name: name for name in known}
    near = get_close_matches(re.sub("[^a-z]+", "_", value.lower()), words, 1) if isinstance(value, str) else ()
    return f": did you mean {words[near[0]]!r}?" if near else ""


def text(name: str, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{name} must be a text that is not empty, got {value!r}")


def flag(name: str, value: object) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")


def real(name: str, value: Any, **bounds: float) -> float:
    """The value as a float, if it is a finite number within bounds: above, at_least, below, at_most."""
    return float(_number(name, value, "a finite number", bounds))


def whole(name: str, value: Any, *, at_least: int = 1, **bounds: int) -> int:
    """The value as an int, if it is a whole number within bounds: at_least, at_most."""
    return int(_number(name, value, "a whole number", {"at_least": at_least, **bounds}))


def _number(name: str, value: Any, noun: str, bounds: Mapping[str, float]) -> Any:
    limits = _limits(bounds)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (noun == "a whole number" and value % 1):
        raise ValueError(f"{name} must be {f'{noun} {limits}'.strip()}, got {value!r}")
    if not all(SIGNS[side][1](value, bound) for side, bound in bounds.items()):
        raise ValueError(f"{name} must be {limits}, got {value!r}")
    return value


def _limits(bounds: Mapping[str, float]) -> str:
    return " and ".join(f"{SIGNS[side][0]} {bound:.15g}" for side, bound in bounds.items())


def instance(name: str, value: Any, *, of: Any, called: str) -> Any:
    if not isinstance(value, of):
        raise ValueError(f"{name} must be {called}, got a {type(value).__name__}")
    return value


def probability(name: str, value: Any) -> float:
    return real(name, value, above=0, below=1)


def array(
    name: str,
    value: Any,
    *,
    shape: Sequence[int | str | EllipsisType] | None = None,
    kind: type[np.floating[Any] | np.integer[Any]] = np.float64,
    finite: bool = True,
    **bounds: float,
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
        bounds: of all numbers, as `real` takes them.

    >>> array("labels", [0.0, 2.0], shape=("records",), kind=np.int64, at_least=0)
    array([0, 2])
    >>> array("scores", None, shape=("runs",))
    Traceback (most recent call last):
    ValueError: scores must be finite numbers, got None
    """
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must not be masked: NumPy would use the values under the mask; leave them out")
    noun = "whole numbers" if issubclass(kind, np.integer) else "finite numbers" if finite else "numbers without NaN"
    narrow = " in float32" if kind is np.float32 else ""
    expected = f"{name} must be {noun}{narrow} {_limits(bounds)}".strip()
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch says what to do: detach(), cpu() or to_dense()
        raise ValueError(f"{expected}, got a {type(value).__name__}: {error}") from None
    if given.size and given.dtype.kind not in "biuf":
        raise ValueError(f"{expected}, got {repr(value)[:80]}")
    if shape is not None and not _fits(given.shape, tuple(shape)):
        sizes = ", ".join("..." if size is ... else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({sizes}{',' * (len(shape) == 1)}), got {given.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        values = given.astype(kind, copy=False)
    # A comparison with NaN is false: so these say what is right, and not what is wrong.
    right = values == given if noun == "whole numbers" else np.isfinite(values) if finite else ~np.isnan(values)
    for side, bound in bounds.items():
        right &= SIGNS[side][1](values, bound)
    if not right.all():
        many = f" ({np.sum(~right)} of {right.size} values)" if right.ndim else ""
        raise ValueError(f"{expected}, got {given[~right][0]}{many}")
    return values


def _fits(sizes: tuple[int, ...], shape: tuple[Any, ...]) -> bool:
    if shape[-1:] == (...,):
        sizes, shape = sizes[: len(shape) - 1], shape[:-1]
    return len(sizes) == len(shape) and all(
        isinstance(want, str) or want == size for want, size in zip(shape, sizes, strict=True)
    )


def several(expected: str, value: Any) -> list[Any]:
    """The entries of a sequence. Texts, mappings and sets are none."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set):
        raise ValueError(f"{expected}, got {value!r}")
    return list(value)


def history(value: Any, name: str = "history", beside: str = "") -> list[tuple[float, float, int]]:
    """Phases of (noise_multiplier, sample_rate, steps), as Opacus's accountants record them.

    `beside` says what else the argument may be.
    """
    names = ("noise_multiplier", "sample_rate", "steps")
    expected = f"{name} must be {beside}a sequence of ({', '.join(names)}), one or more, such as [(1.1, 0.01, 1000)]"
    phases = several(expected, value)
    if not phases or any(np.shape(phase) != (3,) for phase in phases):
        raise ValueError(f"{expected}, got {value!r}" + ("" if phases else ": no step has been taken yet"))
    checked_phases: list[Any] = [
        tuple(ARGUMENTS[part](f"{name}[{i}]: {part}", value) for part, value in zip(names, phase, strict=True))
        for i, phase in enumerate(phases)
    ]
    return checked_phases


Check = Callable[[str, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


def checked(*names: str, **ranges: Check) -> Callable[[F], F]:
    """Check arguments of a function before it runs. It is given what the checks return.

    An argument that is its own default is not checked. A misspelt name is answered with the one that was meant.

    Args:
        names: arguments that mean the same everywhere, checked as `ARGUMENTS` says.
        ranges: checks of this function's own, by argument.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        tests = {name: ARGUMENTS[name] for name in names} | ranges

        @functools.wraps(function)
        def with_checks(*args: Any, **kwargs: Any) -> Any:
            if not signature.parameters.keys() >= kwargs.keys():
                _refuse_unknown(function, kwargs)
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            for name, test in tests.items():
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


ARGUMENTS: dict[str, Check] = {
    "noise_multiplier": partial(real, above=0),
    "sample_rate": partial(real, above=0, at_most=1),
    "steps": whole,
    "delta": probability,
    "adjacency": partial(choice, options=ADJACENCIES),
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
