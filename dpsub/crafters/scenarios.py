"""The crafters by the paper's names of the scenarios."""

from dpsub.crafters.gradients import gradient
from dpsub.crafters.records import crafted_input, mislabeled, natural

BY_SCENARIO = {"S2": gradient, "S3": crafted_input, "S4": mislabeled, "S5": natural}
