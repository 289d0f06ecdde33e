"""How often the audit of a faulty step exceeds what is claimed.

Simulated audits of single steps, after Figures 7 to 9 of *Tight Auditing*.
In notebooks/, ``python -m own_code.fault_power FILE`` makes the table, and
with names of faults after FILE, of these alone. A file that exists is
continued.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from dpsub import accounting
from dpsub.estimators import epsilon_lower_bound
from own_code.provenance import how_made
from own_code.step_seeds import ESTIMATORS

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

    "100 seeds": the noise of a step is one of a hundred numbers. "clips
    the average": a canary ten times too long goes into the sum as it is.
    """
    bits = rng.integers(0, 2, count)
    noise = 1 / accounting.gdp_mu(FAULTS[fault], DELTA)
    drawn = rng.normal(size=count)
    if fault == "100 seeds":
        drawn = rng.normal(size=100)[rng.integers(100, size=count)]
    length = LONGER if fault == "clips the average" else 1
    return noise * drawn + length * (bits == 0), bits


def bounds_of(fault, seed):
    """By estimator and number of observations: the bound on ε."""
    own = [list(FAULTS).index(fault), seed]
    scores, bits = observed(fault, COUNTS[-1], np.random.default_rng(own))
    return {
        (name, count): epsilon_lower_bound(
            scores[:count],
            bits[:count],
            delta=DELTA,
            claim=claim,
            rule=rule,
        ).epsilon
        for name, (claim, rule) in ESTIMATORS.items()
        for count in COUNTS
    }


def rows_of(fault):
    """A row for each estimator and number of observations."""
    found = [bounds_of(fault, seed) for seed in range(AUDITS)]
    return [
        {
            "fault": fault,
            "estimator": name,
            "observations": count,
            "bounds": [round(one[name, count], 4) for one in found],
        }
        for name, count in found[0]
    ]


def make(path, faults=()):
    """Write the rows of faults, by default all, that the file lacks."""
    path = Path(path)
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows, seconds = (
        kept.get("rows", []),
        kept.get("made", {}).get("seconds", 0),
    )
    for fault in faults or FAULTS:
        if fault in {row["fault"] for row in rows}:
            continue
        began = time.process_time()  # the machine may be shared
        rows += rows_of(fault)
        seconds += round(time.process_time() - began)
        about = {
            "claimed": CLAIMED,
            "delta": DELTA,
            "audits": AUDITS,
            "made": how_made(seconds),
        }
        lines = ",\n".join(json.dumps(row) for row in rows)
        head = json.dumps(about)[:-1]
        path.write_text(f'{head},\n"rows": [\n{lines}\n]}}\n')
        print(fault, seconds, flush=True)


def stored(path):
    """The rows as a table, with a share of audits that exceed the claim."""
    kept = json.loads(Path(path).read_text())
    table = pd.DataFrame(kept["rows"])
    exceed = [np.mean(np.array(one) > CLAIMED) for one in table.bounds]
    table = table.assign(
        found=exceed, mean=[np.mean(one) for one in table.bounds]
    )
    return table.set_index(
        ["fault", "estimator", "observations"]
    ).sort_index()


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2:])
