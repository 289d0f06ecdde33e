"""The base of every room: argument checks, streams of randomness, the dataset of scores, pairs of worlds."""

from dpsub._core.canary_pair import CanaryPair, Record
from dpsub._core.pairs import Pairs

__all__ = ["CanaryPair", "Pairs", "Record"]
