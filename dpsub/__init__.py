"""Auditing differential privacy under substitute adjacency."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpsub._version import __version__

if TYPE_CHECKING:
    from dpsub import (
        accounting,
        audits,
        crafters,
        data,
        estimators,
        explorer,
        figures,
        findings,
        game,
        models,
        opacus,
        pictures,
        validity,
        widgets,
    )
    from dpsub.audits import audit
    from dpsub.canaries import CanaryPair
    from dpsub.dpsgd import DPSGD
    from dpsub.worst_case import audit_worst_case

__all__ = [
    "DPSGD",
    "CanaryPair",
    "__version__",
    "accounting",
    "audit",
    "audit_worst_case",
    "audits",
    "crafters",
    "data",
    "estimators",
    "explorer",
    "figures",
    "findings",
    "game",
    "models",
    "opacus",
    "pictures",
    "validity",
    "widgets",
]

# Imported on first use: accounting should not wait for torch, nor training for dp-accounting.
_HOME = {"DPSGD": "dpsgd", "CanaryPair": "canaries", "audit": "audits", "audit_worst_case": "worst_case"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"dpsub.{_HOME[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"dpsub.{name}")
    raise AttributeError(f"module 'dpsub' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
