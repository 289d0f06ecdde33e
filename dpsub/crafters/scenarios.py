"""The papers' adversaries by name, as audits of all of them and figures take them."""

from dpsub.crafters.gradient_canaries import gradient
from dpsub.crafters.record_canaries import crafted_input, mislabeled, natural

BY_SCENARIO = {"S2": gradient, "S3": crafted_input, "S4": mislabeled, "S5": natural}
"""The crafters of the scenarios S2 to S5, in this order. S6 needs an attribute and is not there."""
