"""Audits that train models: Algorithm 1, its observers, and the stores that keep its results."""

from dpsub._core.random_streams import repeat_seeds
from dpsub.audits.coin_datasets import one_run_dataset
from dpsub.audits.distinguishers import distinguish
from dpsub.audits.finished_models import proxy_labels
from dpsub.audits.joined import join
from dpsub.audits.many_runs import audit
from dpsub.audits.mechanisms import audit_mechanism
from dpsub.audits.observers import Observer, Watch
from dpsub.audits.one_run import audit_one_run
from dpsub.audits.own_training import audit_training
from dpsub.audits.plans import made_here
from dpsub.audits.steps import audit_steps
from dpsub.audits.store import load, load_all, status

__all__ = [
    "Observer",
    "Watch",
    "audit",
    "audit_mechanism",
    "audit_one_run",
    "audit_steps",
    "audit_training",
    "distinguish",
    "join",
    "load",
    "load_all",
    "made_here",
    "one_run_dataset",
    "proxy_labels",
    "repeat_seeds",
    "status",
]
