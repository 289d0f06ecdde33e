"""After how many models an audit can stop because the accountant's add/remove ε is refuted under substitution.

``python -m studies.estimators.stopping studies/estimators/stopping.csv`` measures the table in half an hour on a core.
"""

import sys
from itertools import product

import numpy as np

import dpsub
from dpsub import accounting, crafters, data, estimators, models
from dpsub.estimators.betting import reached_after
from dpsub.estimators.claims import GDP
from studies.kept import continued
from studies.trainings import DELTA, ON_A_CPU, calibrated

DATA, SAMPLE_RATES = ("worst case", "digits, S2"), (1.0, 0.25, 0.0625)
EPSILON, STEPS, RUNS, AUDITS, POWER = 10.0, 500, 2_500, 100, 0.8
MODELS = 5_120  # on digits, of which each audit is a sample
FIXED = [int(runs) for runs in np.unique(np.geomspace(16, RUNS, 120).round())]


def observed(name, spec):
    """Scores of final models, and whether they were trained with z."""
    if name == "worst case":
        audit = dpsub.audit_worst_case(**spec.mechanism, runs=AUDITS * RUNS, adjacency="substitute")
    else:
        task = data.digits(n_train=500)
        model = models.linear(task)
        canary = crafters.gradient(task, model, spec, seed=0)
        audit = dpsub.audit(task, model, canary, spec, runs=MODELS, observe_every=STEPS, **ON_A_CPU)
    return audit.score.values[:, -1].astype(float), audit.bit.values == 0


def measured(cell):
    """After how many models bets, and of how many the rank test, refute the accountant's ε; and whether a true one."""
    spec = calibrated(EPSILON, "substitute", 2.0, cell["sample_rate"], STEPS, 1e-3)
    refuted = accounting.epsilon(**spec.mechanism, delta=DELTA, adjacency="add_remove")
    scores, in_z = observed(cell["data"], spec)
    rng, stopped, false, proved = np.random.default_rng(0), [], 0, []
    for _ in range(AUDITS):
        some = rng.choice(len(scores), RUNS, replace=False)
        audit = scores[some], in_z[some]
        claims = (accounting.gdp_mu(epsilon, DELTA) for epsilon in (refuted, EPSILON))
        after, wrongly = (reached_after(*audit, GDP(DELTA), mu, 0.05) for mu in claims)
        stopped.append(after or np.inf)
        false += wrongly is not None
        bits = 1 - audit[1]
        bounds = (estimators.epsilon_lower_bound(audit[0][:n], bits[:n], delta=DELTA) for n in FIXED)
        proved.append([bound.epsilon >= refuted for bound in bounds])
    often = np.mean(proved, axis=0) >= POWER
    needed = max((n for n, enough in zip(FIXED, often, strict=True) if not enough), default=0)
    return [
        {
            "refuted": refuted,
            "stopped_median": np.median(stopped),
            "stopped_80": np.quantile(stopped, POWER, method="higher"),
            "fixed_80": next((n for n in FIXED if n > needed), np.inf),
            "false": false,
            "audits": AUDITS,
        }
    ]


if __name__ == "__main__":
    about = (
        "models until an audit stops (bets), models that a fixed audit needs in 80 % of cases (ranks), true ε refuted"
    )
    continued(sys.argv[1], ("data", "sample_rate"), product(DATA, SAMPLE_RATES), measured, about=about)
