"""The kinds of audits: their plans, and the functions that make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsub.audits.one_run_plans import OneRunPlan, is_of_one_run
from dpsub.audits.plans import Plan
from dpsub.audits.step_plans import is_of_steps
from dpsub.audits.training_plans import TrainingPlan, is_of_training

BankPlan = Plan | OneRunPlan  # of what dpsub's own trainers train
AnyPlan = BankPlan | TrainingPlan


def function_of(attributes: Mapping[str, Any]) -> str:
    """The name of the function that makes audits with these attributes."""
    if is_of_training(attributes):
        return "audit_training"
    if is_of_one_run(attributes):
        return "audit_one_run"
    return "audit_steps" if is_of_steps(attributes) else "audit"
