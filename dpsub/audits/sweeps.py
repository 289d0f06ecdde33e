"""The audits behind the panels of a figure: every scenario under every spec."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import xarray as xr

from dpsub._core import CanaryPair
from dpsub.accounting import DPSGD
from dpsub.audits.collected import warn_of_failures
from dpsub.audits.many_runs import audit
from dpsub.audits.store import read
from dpsub.crafters import BY_SCENARIO
from dpsub.data import Task
from dpsub.models import Model


def sweep(
    task: Task,
    model: Model,
    specs: Mapping[str, DPSGD],
    *,
    scenarios: Mapping[str, Callable[..., CanaryPair]] = BY_SCENARIO,
    seed: int = 0,
    results: str | os.PathLike[str] | None = None,
    **options: Any,
) -> dict[tuple[str, str], xr.Dataset]:
    """Audit every scenario under every spec, for the panels of a figure.

    A canary is crafted for each scenario and spec with `seed`, and audited with the same seed.

    Args:
        task, model: as in `audit`.
        specs: by label, such as "q = 0.25": the DP-SGD parameters of each panel.
        scenarios: the crafters by name; S2 to S5 by default.
        seed: of crafters and audits.
        results: a folder for the stores, one for each audit ("q=0.25-S2.db"); None stores nothing.
        options: of `audit`.

    Returns:
        The audits by label and scenario.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=20)
    >>> specs = {f"q = {q:g}": DPSGD(1.0, 1.0, q, 2, 0.1) for q in (0.5, 1.0)}
    >>> two = {"S2": crafters.gradient, "S4": crafters.mislabeled}
    >>> list(sweep(task, models.linear(task), specs, scenarios=two, runs=4, progress=False))
    [('q = 0.5', 'S2'), ('q = 0.5', 'S4'), ('q = 1', 'S2'), ('q = 1', 'S4')]
    """
    folder = None if results is None else Path(results).expanduser()
    # All names are checked before the first audit runs.
    stores = {
        (label, scenario): folder and folder / f"{_file_name('specs', label)}-{_file_name('scenarios', scenario)}.db"
        for label, scenario in product(specs, scenarios)
    }
    audits = {}
    for label, scenario in stores:
        canary = scenarios[scenario](task, model, specs[label], seed=seed)
        place = {"store": stores[label, scenario]}
        audits[label, scenario] = audit(task, model, canary, specs[label], seed=seed, **options | place)
    return audits


def load_all(
    folder: str | os.PathLike[str], *, label: str = "q = {sample_rate:g}"
) -> dict[tuple[str, str], xr.Dataset]:
    """Read all audits of a folder, by label and scenario, as `sweep` returns them.

    An audit by `audit_training` goes by its parameter `scenario`, or else by its name.

    Args:
        folder: where the stores are: `*.db`.
        label: a format string over an audit's attributes. It has to give each audit of a scenario another label, and
            it gives the labels of the sweep only if it is written like them.

    Raises:
        FileNotFoundError: if the folder holds no audits.
        KeyError: if the label names an attribute that an audit does not have.
        ValueError: if one is damaged or not complete, or if two have the same label and scenario.

    Warns:
        UserWarning: with the store's name, for each audit of a training function in which runs failed.
    """
    audits: dict[tuple[str, str], xr.Dataset] = {}
    for path in sorted(Path(folder).expanduser().glob("*.db")):
        dataset = read(path)
        warn_of_failures(dataset, of=f"{path.name}: ", depth=1)
        key = label.format(**dataset.attrs), str(dataset.attrs.get("scenario", dataset.attrs.get("name")))
        if key in audits:
            raise ValueError(f"label must tell the audits in {folder} apart, got {key} for two of them: {label!r}")
        audits[key] = dataset
    if not audits:
        raise FileNotFoundError(
            f"folder must hold audits, *.db, got {Path(folder).absolute()} without any: the book's audits are in "
            "results/ of dpsub's repository, and its notebooks run in notebooks/"
        )
    return audits


def _file_name(argument: str, label: str) -> str:
    """A label in characters that any file system accepts: "eta=0.1" for "η = 0.1"."""
    name = "".join({"η": "eta", "σ": "sigma", "ε": "epsilon", "δ": "delta"}.get(c, c) for c in str(label) if c != " ")
    if not re.fullmatch(r"[A-Za-z0-9=.,_+-]+", name):
        raise ValueError(f"{argument} must have labels of letters, digits and =.,_+-, for file names, got {label!r}")
    return name
