"""Audits that train models: Algorithm 1, its observers, and the stores that keep its results."""

from dpsub.audits.checked_arguments import repeat_seeds
from dpsub.audits.coin_datasets import OneRunDataset, one_run_dataset
from dpsub.audits.distinguishers import distinguish
from dpsub.audits.many_runs import audit
from dpsub.audits.observers import Observer, Watch
from dpsub.audits.one_run_audits import audit_one_run
from dpsub.audits.own_training import audit_training
from dpsub.audits.step_audits import audit_steps
from dpsub.audits.stored_audits import Status, load, pack, status
from dpsub.audits.sweeps import load_all, sweep

__all__ = [
    "Observer",
    "OneRunDataset",
    "Status",
    "Watch",
    "audit",
    "audit_one_run",
    "audit_steps",
    "audit_training",
    "distinguish",
    "load",
    "load_all",
    "one_run_dataset",
    "pack",
    "repeat_seeds",
    "status",
    "sweep",
]
