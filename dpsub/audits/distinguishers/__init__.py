"""Distinguishers of final models: what an adversary learns from some models and judges others by."""

from dpsub.audits.distinguishers.adversarial import AdversarialSamples
from dpsub.audits.distinguishers.canaries import Canary
from dpsub.audits.distinguishers.protocols import distinguish

__all__ = [
    "AdversarialSamples",
    "Canary",
    "distinguish",
]
