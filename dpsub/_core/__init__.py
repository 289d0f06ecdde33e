"""What every room builds on: argument checks, streams of randomness, datasets of scores, DP-SGD, pairs of worlds."""

from dpsub._core.canaries import CanaryPair, Record
from dpsub._core.dpsgd import DPSGD

__all__ = ["DPSGD", "CanaryPair", "Record"]
