"""What tells a module, a loss or another object from others of its kind: all that it holds, as a text."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import sha256
from types import CodeType, EllipsisType, FunctionType, ModuleType, NoneType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpsub.models.interface import Losses, cross_entropy

PLAIN = (NoneType, EllipsisType, bool, int, float, complex, str, bytes)
INSTALLED = {"torch", "opacus", "dpsub", *sys.stdlib_module_names}


class Identity:
    """Tells objects as texts that are the same in every process.

    Numbers, texts, arrays and tensors are told by their values; containers and objects by what they hold; functions and
    classes by where they are defined and, unless they are a library's, by the globals that they read. Their code is not
    read.

    Args:
        template: a module whose structure is known otherwise, by its `repr`. What that shows is left out.
        drawn: parameters of the template whose values do not count.

    Attributes:
        untold: what could not be told, such as a lambda: where it was found.
    """

    def __init__(self, template: nn.Module | None = None, drawn: Iterable[Tensor] = ()) -> None:
        self.untold: list[str] = []
        self._shown = {} if template is None else {id(one): template.training for one in template.modules()}
        self._drawn = {id(one) for one in drawn}
        self._met: dict[int, tuple[int, object]] = {}  # with the object, so that no other gets its address
        self._within: set[int] = set()  # what functions close over, as decorators do

    def tell(self, where: str, value: Any) -> str:
        """The text of one object. Another call tells an object that it has met by its number alone."""
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
        if isinstance(value, nn.Module):
            return self._module(where, value)
        if isinstance(value, Tensor):
            about = f"{value.dtype}{tuple(value.shape)}{' trained' * value.requires_grad}"
            if id(value) in self._drawn:
                return about
            numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            return f"{about} {sha256(numbers).hexdigest()}"
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return f"{value.dtype.str}{value.shape} {sha256(value.tobytes()).hexdigest()}"
        if isinstance(value, type | FunctionType):
            return self._definition(where, value)
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
            return f"{value.__module__}.{parts}"
        make, given, state, *items = (*parts, None)[: max(3, len(parts))]
        told = [self.tell(where, one) for one in (make, given)]
        told += [self._named(where, state) if type(state) is dict else self.tell(where, state)]
        told += [self.tell(where, list(one) if isinstance(one, Iterator) else one) for one in items]
        return f"<{', '.join(told)}>"

    def _named(self, where: str, values: dict[str, Any]) -> str:
        return ", ".join(f"{name}={self.tell(f'{where}.{name}', one)}" for name, one in sorted(values.items()))

    def _module(self, where: str, module: nn.Module) -> str:
        """What a module holds beyond what is shown; "" if that is nothing."""
        kind = parametrize.type_before_parametrizations(module)  # of parametrized layers, torch makes a class for each
        shown = id(module) in self._shown
        plain = vars(nn.Module()) | {"training": self._shown.get(id(module), True)}
        known = shown and _is_installed(kind.__module__)  # its attributes say what its parameters are
        read = set(module.extra_repr().split(", ")) if shown else set()
        told = {} if known else {"": self.tell(where, kind)}
        for name, value in sorted(vars(module).items()):
            if name in ("_parameters", "_buffers", "_modules"):
                for inner, one in value.items():
                    told[inner] = "" if one is None else self.tell(f"{where}.{inner}", one)
                    if known and id(one) in self._drawn and not told[inner].startswith("#"):
                        told[inner] = ""
            elif name in plain and value != plain[name]:  # mostly hooks, by numbers that say nothing
                told[name] = self.tell(f"{where}.{name}", list(value.values()) if isinstance(value, dict) else value)
            elif name not in plain and (type(value) not in PLAIN or f"{name}={value!r}" not in read):
                told[name] = self.tell(f"{where}.{name}", value)
        return ", ".join(f"{name}: {one}" for name, one in told.items() if one or not shown)

    def _definition(self, where: str, value: type | FunctionType) -> str:
        """A function or class by its name, and by what its code reads."""
        found: Any = sys.modules.get(value.__module__)
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not value and id(value) not in self._within:
            self.untold.append(where)
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_installed(value.__module__):
            return name
        if isinstance(value, FunctionType):
            return f"{name}({self._reads(where, value)})"
        told = {"of": self.tell(where, value.__bases__)}
        for inner, one in sorted(vars(value).items()):
            if isinstance(one, staticmethod | classmethod | property | cached_property):
                one = getattr(one, "__func__", None) or getattr(one, "fget", None) or getattr(one, "func", None)
            if isinstance(one, FunctionType):
                told[inner] = self._reads(f"{where}.{inner}", one)
            elif not (inner[0] == inner[-1] == "_" or inner == "_abc_impl"):
                told[inner] = self.tell(f"{where}.{inner}", one)
        return f"{name}({', '.join(f'{inner}: {one}' for inner, one in told.items() if one)})"

    def _reads(self, where: str, function: FunctionType) -> str:
        """What a function's code reads: its defaults, its own attributes, what it closes over, and globals."""
        codes = list(_codes(function.__code__))
        names = {one.argval for code in codes for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
        attributes = {name for code in codes for name in code.co_names}
        todo = [(name, function.__globals__[name]) for name in sorted(names & function.__globals__.keys())]
        read, modules = {}, set[ModuleType]()
        for name, one in todo:
            read[f"global {name}"] = one
            if isinstance(one, ModuleType) and one not in modules and not _is_installed(one.__name__):
                modules.add(one)
                todo += [(f"{name}.{inner}", vars(one)[inner]) for inner in sorted(attributes & vars(one).keys())]
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._within |= {id(one) for one in cells}
        read |= dict(zip(function.__code__.co_freevars, cells, strict=True))
        read |= vars(function) | {"its defaults": (function.__defaults__, function.__kwdefaults__)}
        return ", ".join(
            f"{name}={self.tell(f'{where} ({name})', one)}" for name, one in read.items() if one is not None
        )


def identity_of(template: nn.Module, losses: Losses, start: object) -> tuple[int, tuple[str, ...]]:
    """A checksum of all that a bank's models start with and train by, and what it holds that cannot be told.

    Args:
        template, losses, start: as of a `ModuleBank`. Values that each model draws anew do not count.
    """
    drawn = [] if start is None else [one for one in template.parameters() if one.requires_grad]
    identity = Identity(template, drawn)
    told = identity.tell("module", template)
    if losses is not cross_entropy:
        told += f", loss: {identity.tell('loss', losses)}"
    if callable(start):
        told += f", start: {identity.tell('start', start)}"
    return crc32(told.encode(), crc32(str(template).encode())), tuple(identity.untold)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those that are defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _is_installed(module: str) -> bool:
    """Whether this is a module of a library, whose version says what it is."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in INSTALLED or "-packages" in file
