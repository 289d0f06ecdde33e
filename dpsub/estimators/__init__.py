r"""From scores and bits to a lower bound on ε.

Beside `dpsub._core` and `dpsub.accounting`, this room imports NumPy and SciPy only.

Bit 0 is the world with z, which is the positive one; bit 1 is the world with z′, the negative one. A high score speaks
for z: a run is called "z" if its score is above the threshold. The false-positive rate is P(score > threshold | z′),
and the false-negative rate is P(score ≤ threshold | z).
"""

from dpsub.estimators.audit_bounds import bound, over_repeats, step_to_training
from dpsub.estimators.lower_bounds import (
    CLAIMS,
    LowerBound,
    epsilon_lower_bound,
    max_certifiable_epsilon,
    one_run_epsilon_lower_bound,
)
from dpsub.estimators.one_run import one_run_guesses
from dpsub.estimators.power import pairs_needed, runs_needed
from dpsub.estimators.risk_bounds import risk_lower_bound
from dpsub.estimators.wealth import wealth_of_bets

__all__ = [
    "CLAIMS",
    "LowerBound",
    "bound",
    "epsilon_lower_bound",
    "max_certifiable_epsilon",
    "one_run_epsilon_lower_bound",
    "one_run_guesses",
    "over_repeats",
    "pairs_needed",
    "risk_lower_bound",
    "runs_needed",
    "step_to_training",
    "wealth_of_bets",
]
