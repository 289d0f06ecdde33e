r"""The adversaries' canaries.

Whoever chooses a gradient puts it where it is seen best (S2). Whoever may only choose records starts from a private
one, the target z, the one that a model trained without privacy is least sure of, and looks for a z′ whose gradient
points the other way: by changing its features (S3), its label (S4), or by looking through other records (S5).
"""

from dpsub.crafters.gradients import gradient
from dpsub.crafters.records import crafted_input, mislabeled, natural
from dpsub.crafters.scenarios import BY_SCENARIO

__all__ = ["BY_SCENARIO", "crafted_input", "gradient", "mislabeled", "natural"]
