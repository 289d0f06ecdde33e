"""Banks in training: R models side by side, step by step as Opacus takes them."""

from dpsub.trainers.assembly import COORDINATES, assemble
from dpsub.trainers.bank import Bank
from dpsub.trainers.blocks import block_bytes, block_size
from dpsub.trainers.slot import GradientSlot, NoSlot, RecordSlot, Slot

__all__ = [
    "COORDINATES",
    "Bank",
    "GradientSlot",
    "NoSlot",
    "RecordSlot",
    "Slot",
    "assemble",
    "block_bytes",
    "block_size",
]
