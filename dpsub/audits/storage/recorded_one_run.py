"""Checks of the attributes of a store of an audit of one training."""

from __future__ import annotations

from reprlib import repr as short

from dpsub._core import checks
from dpsub.audits.one_run_plans import METRICS, MOST_ITERATIONS, MOST_MODELS
from dpsub.audits.storage.documents import Json
from dpsub.audits.storage.recorded import SPEC, TEXTS, check_trained, text, whole
from dpsub.audits.training_plans import WHERE_FROM

OWN = ("audited", "adjacency", "n", "models", "pairs", "subtract_expected", "whiten", "test_fingerprint", "seed")
KNOWN = {*OWN, *TEXTS, *SPEC, *WHERE_FROM, "block_size", "matmul_precision"}


def check_one_run(attributes: Json) -> None:
    """Check the attributes of a root document.

    Raises:
        ValueError: if one is missing, is not of the kind that such an audit records, or is none of its attributes.
    """
    check_trained(attributes, "models", "pairs")
    for name, value in attributes.items():
        if name not in KNOWN and not name.startswith(("pairs_", "version_")):
            raise ValueError(f"{short(name)} is not an attribute of such an audit")
        if isinstance(value, list):
            raise ValueError(f"{short(name)} must be one text or number, got {short(value)}")
    checks.choice("adjacency", attributes["adjacency"], ("substitute",))
    text("pairs_fingerprint", attributes.get("pairs_fingerprint"))
    whole("models", attributes["models"], 1, MOST_MODELS)
    whole("pairs", attributes["pairs"], 1, attributes["n"] - 1)
    expected = whole("subtract_expected", attributes.get("subtract_expected"), 0, 1)
    if whole("whiten", attributes.get("whiten"), 0, MOST_ITERATIONS) and not expected:
        raise ValueError("whiten must be 0 without subtract_expected")
    metrics = attributes["metrics"]
    if metrics not in ("", *METRICS, " ".join(METRICS)):
        raise ValueError(f"metrics must be among {', '.join(METRICS)}, got {short(metrics)}")
    if "accuracy" in metrics or "test_fingerprint" in attributes:
        text("test_fingerprint", attributes.get("test_fingerprint"))
        checks.choice("metrics", metrics, ("accuracy", " ".join(METRICS)))
