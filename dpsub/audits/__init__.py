"""Audits of trained models: Algorithm 1, what it observes, and where its numbers are kept."""

from dpsub.audits.algorithm import audit
from dpsub.audits.arguments import repeat_seeds
from dpsub.audits.observers import Observer, Watch
from dpsub.audits.reading import Status, load, pack, status
from dpsub.audits.sweeps import load_all, sweep

__all__ = ["Observer", "Status", "Watch", "audit", "load", "load_all", "pack", "repeat_seeds", "status", "sweep"]
