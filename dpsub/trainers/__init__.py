"""Training of banks: R models side by side, with the steps that Opacus takes."""

from dpsub.trainers.answers import answers_of
from dpsub.trainers.assembly import assemble
from dpsub.trainers.bank import Bank, Slot, StepGradients, block_size, poisson_coins
from dpsub.trainers.scored_steps import ScoredSteps
from dpsub.trainers.slot import GradientSlot, RecordSlot, label_logits
from dpsub.trainers.step_canaries import StepCanary

__all__ = [
    "Bank",
    "GradientSlot",
    "RecordSlot",
    "ScoredSteps",
    "Slot",
    "StepCanary",
    "StepGradients",
    "answers_of",
    "assemble",
    "block_size",
    "label_logits",
    "poisson_coins",
]
