"""How often the audit of a faulty step exceeds what is claimed.

Simulated audits of single steps, after Figures 7 to 9 of *Tight Auditing*. A file that exists is continued.
``python -m studies.faults.fault_power FILE`` makes the table, and with names of faults after FILE, of these alone.
"""

import sys

import numpy as np
import pandas as pd

from dpsub import accounting
from dpsub.estimators import epsilon_lower_bound
from studies.kept import continued, read_json
from studies.tight_auditing.step_seeds import ESTIMATORS

DELTA, CLAIMED = 1e-5, 1.27  # the claim is the paper's
COUNTS = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
AUDITS = 100
LONGER = 10  # a canary that is not clipped, in units of C
WRONG_NOISE = (1.57, 1.76, 2.17, 2.97)  # the true ε of a step
FAULTS = {
    "none": CLAIMED,
    **{f"noise for {one}": one for one in WRONG_NOISE},
    "100 seeds": CLAIMED,
    "clips the average": CLAIMED,
}


def observed(fault, count, rng):
    """Scores and bits of an audit under add/remove adjacency.

    "100 seeds": the noise of a step is one of a hundred numbers. "clips the average": a canary ten times too long goes
    into the sum as it is.
    """
    bits = rng.integers(0, 2, count)
    noise = 1 / accounting.gdp_mu(FAULTS[fault], DELTA)
    drawn = rng.normal(size=count)
    if fault == "100 seeds":
        drawn = rng.normal(size=100)[rng.integers(100, size=count)]
    length = LONGER if fault == "clips the average" else 1
    return noise * drawn + length * (bits == 0), bits


def measured(cell):
    """A row for each estimator and number of observations, with the bounds on ε of all audits."""
    number, rows = list(FAULTS).index(cell["fault"]), []
    audits = [observed(cell["fault"], COUNTS[-1], np.random.default_rng([number, seed])) for seed in range(AUDITS)]
    for name, (claim, rule) in ESTIMATORS.items():
        how = {"delta": DELTA, "claim": claim, "rule": rule}
        for count in COUNTS:
            bounds = [epsilon_lower_bound(scores[:count], bits[:count], **how).epsilon for scores, bits in audits]
            rows.append({"estimator": name, "observations": count, "bounds": [round(bound, 4) for bound in bounds]})
    return rows


def make(path, faults=()):
    """Write the rows of faults, by default all, that the file lacks."""
    about = {"claimed": CLAIMED, "delta": DELTA, "audits": AUDITS}
    continued(path, ("fault",), [(fault,) for fault in faults or FAULTS], measured, about=about)


def table(path="faults/fault_power.json"):
    """The rows, with the mean bound and the share of audits that exceed the claim."""
    rows = pd.DataFrame(read_json(path)["rows"])
    exceed = [np.mean(np.array(bounds) > CLAIMED) for bounds in rows.bounds]
    rows = rows.assign(found=exceed, mean=[np.mean(bounds) for bounds in rows.bounds])
    return rows.set_index(["fault", "estimator", "observations"]).sort_index()


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2:])
