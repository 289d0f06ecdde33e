"""What tells a module, a loss or another object from others of its kind: its code and all that it holds, as a text."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache, cached_property, partial
from hashlib import sha256
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpsub.models.interface import Losses

PLAIN = (NoneType, EllipsisType, bool, int, float, complex, str, bytes)
INSTALLED = {"torch", "opacus", "dpsub", *sys.stdlib_module_names}
PARTS = ("_parameters", "_buffers", "_modules")
BARE = vars(nn.Module())


class Identity:
    """Turns objects into texts that are the same in every process and differ where the objects do.

    Stores hold checksums of these texts, of modules, observers and training functions: after a change of their wording
    they refuse what is stored.

    Numbers, texts, arrays and tensors are told by their values; containers, modules and other objects by what they
    hold. Functions and classes are told by their source, a class with those that it derives from, and by what the
    source names: globals, defaults, and what functions close over. Those of libraries are told by their names.

    Args:
        drawn: parameters whose values do not count.
        constants: tell what cannot change as code runs: of arrays, containers and objects only what they are.

    Attributes:
        untold: what could not be told, such as a lambda or a function without a source: where it was found.
    """

    def __init__(self, drawn: Iterable[Tensor] = (), *, constants: bool = False) -> None:
        self.untold: list[str] = []
        self._constants = constants
        self._drawn = {id(one) for one in drawn}
        self._met: dict[int, tuple[int, object]] = {}  # with the object, so that no other gets its address

    def tell(self, where: str, value: Any) -> str:
        """The text of one object; of an object told before, its number alone."""
        if type(value) in PLAIN:
            return repr(value)
        if type(value) is tuple:  # without a number: equal constants may be one object or two
            return f"({', '.join(self.tell(where, one) for one in value)})"
        if id(value) in self._met:
            return f"#{self._met[id(value)][0]}"
        self._met[id(value)] = len(self._met), value
        try:
            return self._told(where, value)
        except Exception:  # it is anybody's object
            self.untold.append(where)
            return "?"

    def _told(self, where: str, value: Any) -> str:
        if isinstance(value, partial):
            return self.tell(where, (value.func, value.args, *value.keywords.items()))
        if self._constants and not isinstance(value, type | FunctionType | MethodType | ModuleType | np.generic):
            return self.tell(where, type(value))
        if isinstance(value, nn.Module):  # of parametrized layers, torch makes a class for each
            kind = self.tell(where, parametrize.type_before_parametrizations(value))
            return f"<{kind}, {self._named(where, _held(value))}>"
        if isinstance(value, Tensor):
            about = f"{value.dtype}{tuple(value.shape)}{' trained' * value.requires_grad}"
            if id(value) in self._drawn:
                return about
            numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            return f"{about} {sha256(numbers).hexdigest()}"
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return f"{value.dtype.str}{value.shape} {sha256(value.tobytes()).hexdigest()}"
        if isinstance(value, FunctionType):
            return self._function(where, value)
        if isinstance(value, type):
            return self._class(where, value)
        if isinstance(value, ModuleType):
            return value.__name__
        if type(value) is list:
            return f"[{', '.join(self.tell(f'{where}[{i}]', one) for i, one in enumerate(value))}]"
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}{sorted(self.tell(where, one) for one in value)}"
        if type(value) is dict:
            entries = ((self.tell(where, name), f"{where}[{name!r:.40}]", one) for name, one in value.items())
            return f"{{{', '.join(f'{name}: {self.tell(place, one)}' for name, place, one in entries)}}}"
        parts = value.__reduce_ex__(2)  # what Python makes copies of
        if isinstance(parts, str):
            return f"{value.__module__}.{parts}({self.tell(where, getattr(value, '__wrapped__', None))})"
        make, given, state, *items = (*parts, None)[: max(3, len(parts))]
        told = [self.tell(where, one) for one in (make, given)]
        told += [self._named(where, state) if type(state) is dict else self.tell(where, state)]
        told += [self.tell(where, list(one) if isinstance(one, Iterator) else one) for one in items]
        return f"<{', '.join(told)}>"

    def _named(self, where: str, values: dict[str, Any]) -> str:
        return ", ".join(f"{name}={self.tell(f'{where}.{name}', one)}" for name, one in values.items())

    def _class(self, where: str, value: type) -> str:
        name = f"{value.__module__}.{value.__qualname__}"
        if is_installed(value.__module__) and "<" not in name:
            return name
        told = [self.tell(where, value.__bases__)]
        for inner, one in vars(value).items():
            if isinstance(one, staticmethod | classmethod | property | cached_property):
                one = getattr(one, "__func__", None) or getattr(one, "fget", None) or getattr(one, "func", None)
            if isinstance(one, FunctionType):
                code = getattr(inspect.unwrap(one), "__code__", one.__code__)
                made = code.co_qualname != one.__qualname__ and _source(code) is None  # as those of dataclasses are
                told += [] if made else [self.tell(f"{where}.{inner}", one)]
            elif not (inner[0] == inner[-1] == "_" or inner == "_abc_impl"):
                told += [f"{inner}={self.tell(f'{where}.{inner}', one)}"]
        return f"{name}({', '.join(told)})"

    def _function(self, where: str, function: FunctionType) -> str:
        code, module = function.__code__, function.__globals__["__name__"]  # decorators copy those of functions
        name = f"{module}.{code.co_qualname}"
        if is_installed(module) and "<" not in name:
            return name
        source = _source(code)
        if source is None or code.co_name == "<lambda>":  # a line may hold several
            self.untold.append(where)
        codes = list(_codes(code))
        names = {one.argval for each in codes for one in dis.get_instructions(each) if one.opname == "LOAD_GLOBAL"}
        read = dict(_read(function.__globals__, names, {name for each in codes for name in each.co_names}))
        cells = (cell.cell_contents for cell in function.__closure__ or ())
        read |= dict(zip(code.co_freevars, cells, strict=True)) | vars(function)
        read |= {"its defaults": (function.__defaults__, tuple((function.__kwdefaults__ or {}).items()))}
        told = (f"{inner}={self.tell(f'{where} ({inner})', one)}" for inner, one in read.items())
        return f"{name}({source}, {', '.join(told)})"


def identity_of(template: nn.Module, losses: Losses, start: object) -> tuple[int, tuple[str, ...]]:
    """A checksum of all that a bank's models start with and train by, and what it holds that cannot be told.

    Args:
        template, losses, start: as of a `ModuleBank`. Values that each model draws anew do not count.
    """
    identity = Identity([] if start is None else [one for one in template.parameters() if one.requires_grad])
    told = [identity.tell(name, one) for name, one in (("module", template), ("loss", losses), ("start", start))]
    return crc32(", ".join(told).encode()), tuple(identity.untold)


def is_installed(module: str) -> bool:
    """Whether this is a module of a library, whose version says what it is."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in INSTALLED or "-packages" in file


def _held(module: nn.Module) -> dict[str, Any]:
    """What a module holds by name, but its mode, which banks choose, and what every module holds."""
    held: dict[str, Any] = {}
    for name, one in vars(module).items():
        if name in PARTS:
            held |= one
        elif name not in BARE:
            held[name] = one
        elif name != "training" and one != BARE[name]:  # mostly hooks, by numbers that say nothing
            held[name] = list(one.values()) if isinstance(one, dict) else one
    return held


@cache
def _source(code: CodeType) -> str | None:
    """The source as it was when it was first read: what is edited later is not what runs."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those that are defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _read(held: dict[str, Any], names: set[str], attributes: set[str]) -> Iterator[tuple[str, Any]]:
    """What has these names, and these attributes of modules of one's own among it."""
    for name in sorted(names & held.keys()):
        one, others = held[name], attributes - {name}
        yield name, one
        if isinstance(one, ModuleType) and not is_installed(one.__name__):
            yield from ((f"{name}.{inner}", value) for inner, value in _read(vars(one), others, others))
