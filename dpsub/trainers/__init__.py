"""Training of banks: R models side by side, with the steps that Opacus takes.

`assemble` makes a `Bank` of a task, a canary and a spec. `bank` holds the step: it asks the model for the sum of
clipped gradients (`dpsub.models.Model.clipped_sum`), the slot for what the canary adds, and `batches` for who is in a
batch. Records are clipped by the model, so another clipping starts there; `slot.clipping_scale` repeats its
formula.
"""

from dpsub.trainers.answers import answers_of
from dpsub.trainers.assembly import assemble
from dpsub.trainers.bank import Bank, block_size
from dpsub.trainers.batches import poisson_coins
from dpsub.trainers.slot import RecordSlot

__all__ = [
    "Bank",
    "RecordSlot",
    "answers_of",
    "assemble",
    "block_size",
    "poisson_coins",
]
