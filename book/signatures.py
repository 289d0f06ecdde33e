"""How a function is called and a record is made, as their sources have it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

WIDE = 88


@cache
def definition_of(function: Any) -> ast.FunctionDef | ast.ClassDef:
    """The source of a function or a class, read."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = tree.body[0]
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    return found


def text(node: ast.expr) -> str:
    """An expression as it is written, with double quotes."""
    written = ast.unparse(node)
    return written if '"' in written else written.replace("'", '"')


def written(name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
    """One parameter as it is written in a signature."""
    typed = name if annotation is None else f"{name}: {text(annotation)}"
    if default is None:
        return typed
    return f"{typed} = {text(default)}" if annotation else f"{typed}={text(default)}"


def parameters(function: ast.FunctionDef) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """The parameters of a function with type and default, "*" where only names follow; without self and cls."""
    args = function.args
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    found = [(arg.arg, arg.annotation, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.vararg:
        found.append((f"*{args.vararg.arg}", args.vararg.annotation, None))
    elif args.kwonlyargs:
        found.append(("*", None, None))
    found += [(arg.arg, arg.annotation, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        found.append((f"**{args.kwarg.arg}", args.kwarg.annotation, None))
    return [one for one in found if one[0] not in ("self", "cls")]


def fields(kind: ast.ClassDef) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """The fields of a record with type and default, `field(...)` read for its default."""
    found = []
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            default = node.value
            if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("field"):
                given = {word.arg: word.value for word in default.keywords}
                made = given.get("default_factory")
                default = ast.Call(made, [], []) if made else given.get("default")
            found.append((node.target.id, node.annotation, default))
    return found


def is_protocol(kind: Any) -> bool:
    """Whether others implement this class rather than make it."""
    return bool(getattr(kind, "_is_protocol", False))


def shown_default(default: ast.expr | None, given: Any) -> ast.expr | None:
    """A default as it is written, but a number or a text that has a name as itself."""
    named = isinstance(default, ast.Name | ast.Attribute) and isinstance(given, int | float | str)
    return ast.Constant(given) if named else default


def taken(value: Any) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """What a callable takes: a function its parameters, a record its fields, another class what `__init__` takes."""
    node = definition_of(value)
    if isinstance(node, ast.FunctionDef):
        given = inspect.signature(value).parameters
        return [
            (name, kind, shown_default(default, given[name].default if name in given else None))
            for name, kind, default in parameters(node)
        ]
    if "__init__" in vars(value) and not hasattr(value, "__dataclass_fields__"):
        return parameters(definition_of(value.__init__))  # type: ignore[arg-type]
    return fields(node)


def signature(name: str, value: Any) -> str:
    """The call of a public name, on one line or with one parameter a line."""
    node = definition_of(value)
    if is_protocol(value):
        return f"class {name}(Protocol)"
    parts = [written(*one) for one in taken(value)]
    answer = f" -> {text(node.returns)}" if isinstance(node, ast.FunctionDef) and node.returns else ""
    start = f"class {name}" if isinstance(node, ast.ClassDef) else name
    line = f"{start}({', '.join(parts)}){answer}"
    if len(line) <= WIDE or not parts:
        return line
    return f"{start}(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"
