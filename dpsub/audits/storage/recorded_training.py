"""Checks of the attributes of a store of an audit of a training function."""

from __future__ import annotations

from reprlib import repr as short

from dpsub._core import checks
from dpsub.audits.storage.documents import Json, same
from dpsub.audits.storage.recorded import ORIGIN, check_plain, text, whole
from dpsub.audits.training_plans import (
    ABOUT,
    MOST_RUNS,
    MOST_STEP,
    OWN_FUNCTION,
    WHERE_FROM,
    checked_parameters,
    checked_steps,
)


def check_training(attributes: Json) -> None:
    """Check the attributes of a root document.

    Raises:
        ValueError: if one is missing, is not of the kind that such an audit records, or is none of its attributes.
    """
    check_plain(attributes)
    for name in (*ABOUT, "models_stored"):
        if name not in attributes:
            raise ValueError(f"{name} is missing")
    for name in ("trained_by", "name", "parameters", *attributes):
        if name in ("trained_by", "name", "parameters", *ORIGIN) or name.startswith("version_"):
            text(name, attributes[name])
    checks.choice("trained_by", attributes["trained_by"], (OWN_FUNCTION,))
    checks.text("name", attributes["name"])
    checks.adjacency(attributes["adjacency"])
    whole("runs", attributes["runs"], 1, MOST_RUNS)
    whole("models_stored", attributes["models_stored"], 0)
    whole("seed", attributes["seed"], 0, None)
    checks.real("wall_seconds", attributes.get("wall_seconds", 0.0), at_least=0)
    steps = attributes["observed_steps"]
    for step in steps if isinstance(steps, list) else ():
        whole("observed_steps", step, 1, MOST_STEP)
    if not isinstance(steps, list) or not same(list(checked_steps(steps)), steps):
        raise ValueError(f"observed_steps must be a list of whole numbers, got {short(steps)}")
    names = attributes["parameters"].split(" ") if attributes["parameters"] else []
    known = {*ABOUT, *WHERE_FROM, *names}
    for name in attributes:
        if name not in known and not name.startswith("version_"):
            raise ValueError(f"{short(name)} is not an attribute of such an audit")
    if missing := [name for name in names if name not in attributes]:
        raise ValueError(f"{short(missing[0])} is missing")
    parameters = {name: attributes[name] for name in names}
    if list(checked_parameters(parameters)) != names:
        raise ValueError(f"parameters must be names in order, each once, got {short(attributes['parameters'])}")
