"""What is public: the names in the faces of dpsub and its rooms."""

import inspect
from types import ModuleType

import pytest

import dpsub

ROOMS = [name for name in dpsub.__all__ if isinstance(getattr(dpsub, name), ModuleType)]


def public():
    """The names of all public callables, as users write them."""
    for room in ("", *ROOMS):
        face = named(f"dpsub.{room}") if room else dpsub
        for name in getattr(face, "__all__", [name for name, value in vars(face).items() if defined_in(value, face)]):
            if callable(getattr(face, name)) and not name.startswith("_"):
                yield f"dpsub.{room}.{name}" if room else f"dpsub.{name}"


def defined_in(value, module):
    return getattr(value, "__module__", "") == module.__name__


def named(name):
    """What has this name: "dpsub.accounting.epsilon"."""
    value = dpsub
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_what_is_public_is_there_and_described(room):
    for name in public():
        if name.rpartition(".")[0] == (f"dpsub.{room}" if room else "dpsub"):
            assert inspect.getdoc(named(name)), name


def test_a_name_of_the_package_is_that_of_a_room():
    """The package's face repeats what rooms export, so that a name means one thing."""
    in_rooms = {id(named(name)) for name in public() if name.count(".") > 1}
    own = {"dpsub.DPSGD", "dpsub.CanaryPair", "dpsub.Pairs", "dpsub.Record", "dpsub.audit_worst_case"}
    assert {name for name in public() if name.count(".") == 1 and id(named(name)) not in in_rooms} <= own
