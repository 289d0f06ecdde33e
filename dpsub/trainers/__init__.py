"""Training of banks: R models side by side, with the steps that Opacus takes.

`assemble` makes a `Bank` of a task, a canary and a spec. `bank` holds the step: it asks the model for the sum of
clipped gradients (`dpsub.models.Model.clipped_sum`), the slot for what the canary adds, and `batches` for who is in a
batch. Records are clipped by the model, so another clipping starts there; `slot.clipping_scale` repeats its
formula.
"""

from dpsub.trainers.answers import answers_of
from dpsub.trainers.assembly import assemble
from dpsub.trainers.bank import Bank, Slot, StepGradients, block_size
from dpsub.trainers.batches import poisson_coins
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
