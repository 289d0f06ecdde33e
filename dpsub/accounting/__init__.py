r"""ε and δ of DP-SGD under add/remove and substitute adjacency, for Poisson batches and others.

For the replacement of one record, a step with Poisson batches, noise multiplier σ and sample rate q is dominated by the
pair

.. math:: (1-q)\,N(0,\sigma^2) + q\,N(1,\sigma^2) \quad\text{against}\quad (1-q)\,N(0,\sigma^2) + q\,N(-1,\sigma^2),

in units of the clipping bound. For its addition or removal, the pair is N(0, σ²) and one of these mixtures. The book
proves both (*The theorems behind an ε*, "Opposite gradients are the worst case"). Compositions of dominating pairs
dominate (Zhu, Dong and Wang, 2022, Theorem 10).

Each function describes the training by its phases (`phases`). The sampling names the pairs that dominate a step of each
phase (`samplings`, `dominating_pairs`). `engines` asks one curve δ(ε) after the other until the answer is precise: the
closed form (`gaussian`), dpsub's own grid (`grid_engine`) or prv-accountant (`prv_engine`).
"""

from dpsub.accounting.calibration import noise_multiplier
from dpsub.accounting.dpsgd import DPSGD
from dpsub.accounting.epsilon_delta import delta, epsilon, epsilon_interval, tradeoff
from dpsub.accounting.gaussian import gdp_delta, gdp_epsilon, gdp_mu
from dpsub.accounting.group_privacy import group_privacy_epsilon
from dpsub.accounting.risks import risk
from dpsub.accounting.samplings import Epochs, Poisson, PoissonMean, Sampling, TruncatedPoisson, WithoutReplacement
from dpsub.accounting.worst_case_law import worst_case_epsilon

__all__ = [
    "DPSGD",
    "Epochs",
    "Poisson",
    "PoissonMean",
    "Sampling",
    "TruncatedPoisson",
    "WithoutReplacement",
    "delta",
    "epsilon",
    "epsilon_interval",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "group_privacy_epsilon",
    "noise_multiplier",
    "risk",
    "tradeoff",
    "worst_case_epsilon",
]
