"""Auditing differential privacy under substitute adjacency."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpsub._version import __version__

if TYPE_CHECKING:
    from dpsub import accounting, audits, crafters, data, estimators, figures, models, opacus, trainers
    from dpsub._core import CanaryPair, Pairs, Record
    from dpsub.accounting import DPSGD
    from dpsub.audits import (
        audit,
        audit_mechanism,
        audit_one_run,
        audit_steps,
        audit_training,
        distinguish,
        distinguishers,
        one_run_dataset,
        proxy_labels,
    )
    from dpsub.estimators import bound
    from dpsub.figures import findings
    from dpsub.worst_case import audit_worst_case

__all__ = [
    "DPSGD",
    "CanaryPair",
    "Pairs",
    "Record",
    "__version__",
    "accounting",
    "audit",
    "audit_mechanism",
    "audit_one_run",
    "audit_steps",
    "audit_training",
    "audit_worst_case",
    "audits",
    "bound",
    "crafters",
    "data",
    "distinguish",
    "distinguishers",
    "estimators",
    "figures",
    "findings",
    "models",
    "one_run_dataset",
    "opacus",
    "proxy_labels",
    "trainers",
]

# Imported on first use, so that `import dpsub` is fast and accounting does not import torch.
_NAMES = {
    "DPSGD": "accounting",
    "CanaryPair": "_core",
    "Pairs": "_core",
    "Record": "_core",
    "audit": "audits",
    "audit_mechanism": "audits",
    "audit_one_run": "audits",
    "audit_steps": "audits",
    "audit_training": "audits",
    "distinguish": "audits",
    "one_run_dataset": "audits",
    "proxy_labels": "audits",
    "audit_worst_case": "worst_case",
    "bound": "estimators",
}
_MODULES = {
    "distinguishers": "audits.distinguishers",
    "findings": "figures.findings",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"dpsub.{_NAMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"dpsub.{_MODULES.get(name, name)}")
    raise AttributeError(f"module 'dpsub' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
