"""Audits of federated trainings, in which a hospital is a record.

`python -m studies.faults.federated_audits studies/faults/federated_audits.csv` repeats them with Flower, where
`flwr` and `dp-accounting` are installed, as in `libraries`.
"""

import sys
from functools import partial
from importlib import metadata

import numpy as np

import dpsub
from dpsub import data
from studies.kept import continued
from studies.own_training import federated

HOSPITALS = 40
PATIENTS = 10  # of each
PROMISED = {"max_grad_norm": 1.0, "noise_multiplier": 6.0}
DELTA = 1e-5
RUNS = 1_000
STEEP = 2.0  # how long a crafted patient's row is: steep enough to be clipped, too short to be learned
MORE = 4  # times as many patients as the others have


def hospitals(seed=0):
    """All but one of the hospitals, and pairs for the last: by name their adjacency, and the pair."""
    task = data.breast_cancer(n_train=HOSPITALS * PATIENTS, seed=seed)
    x = task.x_train.astype(float).reshape(HOSPITALS, PATIENTS, -1)
    y = 2 * task.y_train.reshape(HOSPITALS, PATIENTS) - 1
    # where patients differ least, so that the other hospitals teach the model nothing there
    _, directions = np.linalg.eigh(task.x_aux.T.astype(float) @ task.x_aux)
    same = np.broadcast_to(STEEP * directions[:, 0], (2, *x.shape[1:]))
    benign_or_not = np.repeat([[1], [-1]], PATIENTS, axis=1)
    present = np.array([1, 0])[:, None, None]
    pairs = {
        "crafted": ("substitute", (same, benign_or_not)),
        "ordinary": ("substitute", (x[[-1, -1]], y[-1] * benign_or_not)),
        "crafted or none": ("zero_out", (present * same, benign_or_not)),
    }
    return (x[:-1], y[:-1]), pairs


def audited(name, *, runs, seed=0, promised=PROMISED, **how):
    """The dataset of the audit of one of the pairs, with a score for each round."""
    others, pairs = hospitals(seed)
    adjacency, pair = pairs[name]
    return dpsub.audit_training(
        partial(federated.train, others=others, pair=pair, **promised, **how),
        runs=runs,
        adjacency=adjacency,
        name=name,
        steps=range(1, federated.ROUNDS + 1),
        seed=seed,
        progress=False,
    )


def reported():
    """The ε that Flower's accountant reports after a training in which all take part: it has add/remove alone."""
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    from studies.own_training.federated_flower import flower

    (x, y), _ = hospitals()
    config = PrivacyConfig(DELTA, len(x), NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    flower(x, y, 0, **PROMISED, accountant=accountant)
    return accountant.get_privacy_spent().epsilon


def measured(cell, *, runs=RUNS):
    """What the audit of Flower's training finds: a row of the table."""
    from studies.own_training.federated_flower import flower

    examples = [PATIENTS] * (HOSPITALS - 1) + [PATIENTS * cell["times"]]
    seen = audited("crafted", runs=runs, run=partial(flower, examples=examples))
    last = dpsub.bound(seen, delta=DELTA)[-1]
    row = {
        "library": "flwr",
        "version": metadata.version("flwr"),
        "adjacency": "substitute",
        **PROMISED,
        "rounds": federated.ROUNDS,
        "hospitals": HOSPITALS,
        "runs": runs,
        "delta": DELTA,
        "bound": round(last.epsilon, 3),
        "reported": round(reported(), 3) if cell["times"] == 1 else "",
    }
    return [row]


if __name__ == "__main__":
    continued(sys.argv[1], ("times",), [(1,), (MORE,)], measured)
