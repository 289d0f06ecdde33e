"""Training of banks: R models side by side, with the steps that Opacus takes."""

from dpsub.trainers.answers import answers_of
from dpsub.trainers.bank import Bank
from dpsub.trainers.bank_assembly import COORDINATES, assemble
from dpsub.trainers.blocks import block_bytes, block_size
from dpsub.trainers.distillation import Surrogates, distilled
from dpsub.trainers.pair_assembly import ScoredSteps, assemble_pairs
from dpsub.trainers.slot import GradientSlot, NoSlot, RecordSlot, Slot, label_logits
from dpsub.trainers.step_canaries import StepCanary, StepGradients

__all__ = [
    "COORDINATES",
    "Bank",
    "GradientSlot",
    "NoSlot",
    "RecordSlot",
    "ScoredSteps",
    "Slot",
    "StepCanary",
    "StepGradients",
    "Surrogates",
    "answers_of",
    "assemble",
    "assemble_pairs",
    "block_bytes",
    "block_size",
    "distilled",
    "label_logits",
]
