"""The arrays of a stored audit of one training."""

from __future__ import annotations

from dpsub.audits.one_run_plans import PAIR, SLOT, one_run_variables
from dpsub.audits.plans import Cut
from dpsub.audits.storage.documents import OTHER, VARIABLE, Array, Json


def arrays_of_one_run(about: Json, cut: Cut, arrays: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables that the attributes name, and the slots.

    Raises:
        ValueError: if they are not as dpsub writes them.
    """
    parameters = arrays["weights"].shape[-1] if "weights" in arrays else 0
    found = {}
    for name, variable in one_run_variables(cut.runs, about["pairs"], parameters, about["metrics"].split()).items():
        given = arrays.get(name)
        long_name = None if given is None else given.attributes.get("long_name")
        expected = Array(
            shape=variable.shape,
            chunks=(min(cut.shard_runs, cut.runs), *variable.shape[1:]),
            dtype=variable.dtype,
            fill="NaN" if variable.dtype == "float32" else variable.fill,
            level=VARIABLE,
            dims=variable.dims,
            attributes={**variable.attributes, "long_name": long_name},
        )
        if given != expected or not isinstance(long_name, str):
            raise ValueError(f"{name!r} is not the variable that the attributes describe")
        found[name] = expected
    slots = arrays.get(SLOT)
    if slots is None or slots != Array((about["pairs"],), slots.chunks, "int64", 0, OTHER, (PAIR,), {}):
        raise ValueError(f"{SLOT!r} is not the slots of pairs as dpsub writes them")
    return found, {SLOT: slots}
