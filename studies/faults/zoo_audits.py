"""Audits of the trainings of the zoo, and which of them finds which fault.

Those in `AUDITS` return the log-wealth of their bets after each step, and after how many steps the training was
refuted: None if it was not. ``python -m studies.faults.zoo_audits FILE`` makes the table.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from dpsub.estimators.claims import GDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected
from dpsub.opacus import SubstitutePRVAccountant, audit_optimizer
from studies.faults import zoo
from studies.faults.zoo_training import Training, not_seen_yet, observe_record
from studies.kept import continued

CELL = ("fault", "audit", "adjacency")
DELTA, ALPHA = 1e-5, 0.05
LITTLE = 0.3  # a noise multiplier at which batches show who is in them


def bets(scores, bits, *, noise_multiplier, adjacency, sample_rate=1.0):
    """The log-wealth, after each step, of bets against what is claimed, and when it reached 1/α."""
    claim = GDP(DELTA)
    if sample_rate < 1:
        claim = MechanismDP(DELTA, sample_rate, 1, adjacency)
    of_z_prime = -1.0 if adjacency == "substitute" else 0.0
    bettor = Bettor(ALPHA, Expected(1.0, of_z_prime, sample_rate))
    distance, path = 1.0 - of_z_prime, []
    for score, bit in zip(scores, bits, strict=True):
        bettor.observe(score, bit == 0, claim, distance / noise_multiplier)
        path.append(bettor.log_wealth)
    return np.array(path), bettor.refuted_at


def beside_records(trainer, *, adjacency, steps, seed, **asked):
    """A canary beside the records: `audit_optimizer`."""
    return _audit(Training(trainer, seed=seed), adjacency, steps, seed, asked)


def canary_alone(trainer, *, noise_multiplier, adjacency, steps, seed, stop=False):
    """The audit of an optimizer without records: its canary alone, until the end or, with `stop`, a refutation."""
    torch.manual_seed(seed)
    weights = torch.nn.Parameter(torch.zeros(100))
    optimizer = trainer.optimizer(
        torch.optim.SGD([weights], lr=0.1), noise_multiplier=noise_multiplier, max_grad_norm=1.0, expected_batch_size=30
    )
    auditor = audit_optimizer(
        optimizer, delta=DELTA, adjacency=adjacency, alpha=ALPHA, sample_rate=0.1, test_noise=False, seed=seed
    )
    for _ in range(steps):
        weights.grad_sample = torch.zeros(0, 100)
        optimizer.step()
        optimizer.zero_grad()
        if stop and auditor.refuted:
            break
    return auditor


def against_others(trainer, *, adjacency, steps, seed):
    """A canary that points against all other records, copies of one.

    Batches have a fixed size, so the sum of the others hardly varies.
    """
    training = Training(replace(trainer, loader=zoo.shuffled), alike=True, learning_rate=1e-3, seed=seed)
    x, y, _ = training.data[-1:]
    training.gradients_of(x, y)
    asked = {"canary": [-p.grad_sample[0] for p in training.optimizer.params]}
    return _audit(training, adjacency, steps, seed, asked)


def _audit(training, adjacency, steps, seed, asked):
    optimizer = training.optimizer
    asked = {"test_noise": False, "sample_rate": training.sample_rate, "seed": seed} | asked
    auditor = audit_optimizer(optimizer, delta=DELTA, adjacency=adjacency, alpha=ALPHA, **asked)
    for _ in training.batches():
        optimizer.step()
        if auditor.steps == steps or auditor.refuted:
            break
    seen, law = auditor.observations(), {"noise_multiplier": optimizer.noise_multiplier, "adjacency": adjacency}
    path, _ = bets(seen.score.values.astype(float), seen.bit.values, **law)
    return path, auditor.refuted_at


def record_as_canary(trainer, *, adjacency, steps, seed, look="product", noise_multiplier=1.0):
    """A canary among the records: the claim is of a subsampled step."""
    training = Training(trainer, noise_multiplier=noise_multiplier, seed=seed)
    product, shortness, bits = observe_record(training, steps, adjacency=adjacency, seed=seed)
    law = {"noise_multiplier": noise_multiplier, "sample_rate": training.sample_rate}
    scores, chosen = product, np.ones(steps, dtype=bool)
    if look == "length":
        scores = shortness
    elif look == "not seen yet":
        chosen = not_seen_yet(product, bits, **law)
    path, after = bets(scores[chosen], bits[chosen], adjacency=adjacency, **law)
    growth = np.zeros(steps)
    growth[chosen] = np.diff(path, prepend=0.0)
    at = None if after is None else int(np.flatnonzero(chosen)[after - 1]) + 1
    return np.cumsum(growth)[:at], at


def batch_sizes(trainer, *, adjacency, steps, seed):
    """What the accountant sees without a canary: the sizes of batches."""
    training = Training(trainer, seed=seed)
    accountant = SubstitutePRVAccountant()
    training.optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(training.sample_rate))
    for t, _ in enumerate(training.batches(), start=1):
        training.optimizer.step()
        try:
            accountant.check_sampling("poisson")
        except ValueError:
            return np.zeros(t), t
        if t == steps:
            return np.zeros(t), None


AUDITS = {
    "Dirac": beside_records,
    "Diracs": partial(beside_records, canary="diracs"),
    "constant": partial(beside_records, canary="constant"),
    "random": partial(beside_records, canary="random"),
    "random, anew": partial(beside_records, canary="random", anew=True),
    "Diracs of norm C": partial(beside_records, canary="diracs", canary_norm=1.0),
    "noise tested": partial(beside_records, test_noise=True),
    "against the others": against_others,
    "record": partial(record_as_canary, noise_multiplier=LITTLE),
    "record, not seen yet": partial(record_as_canary, look="not seen yet", noise_multiplier=LITTLE),
    "length": partial(record_as_canary, look="length"),
    "sizes": batch_sizes,
}


BEST = {
    "right": ("Diracs", "substitute"),
    "clips the average": ("Dirac", "substitute"),
    "clips each layer": ("Diracs", "substitute"),
    "sums before clipping": ("against the others", "add_remove"),
    "100 seeds": ("noise tested", "substitute"),
    "half the noise": ("Dirac", "substitute"),
    "noise on one group": ("Diracs", "substitute"),
    "noise of microbatches": ("Dirac", "substitute"),
    "noise of workers": ("Dirac", "substitute"),
    "too much noise": ("Diracs", "substitute"),
    "shuffled": ("sizes", "substitute"),
    "weighted": ("record", "substitute"),
    "divides by n": ("length", "add_remove"),
}
CANARIES = ("Dirac", "Diracs", "constant", "random", "random, anew")
OF_RECORDS = ("record", "record, not seen yet", "length", "sizes")
AUDITS_OF = {
    "sums before clipping": ("against the others",),
    "half the noise": ("against the others",),
} | dict.fromkeys(("shuffled", "weighted", "divides by n"), OF_RECORDS)


def all_cells():
    """Every fault, with the audits that could concern it."""
    for fault in zoo.ZOO:
        audits = (*CANARIES, "Diracs of norm C", "noise tested", *AUDITS_OF.get(fault, ()))
        if "record" in audits:
            audits = ("Dirac", "Diracs", "noise tested", *OF_RECORDS)
        for audit in audits:
            yield fault, audit, "substitute"
            if audit != "record, not seen yet":
                yield fault, audit, "add_remove"


def detection(cells, *, steps, seeds):
    """After how many steps each audit refutes each trainer: a row for each cell (fault, audit, adjacency).

    How many repetitions, one for each seed, found the fault; the median number of steps, where those that did not count
    as infinitely many; and the log-wealth of the first repetition.
    """
    rows = []
    for fault, audit, adjacency in cells:
        trained = [AUDITS[audit](zoo.ZOO[fault], adjacency=adjacency, steps=steps, seed=seed) for seed in seeds]
        after = [np.inf if at is None else at for _, at in trained]
        found = {"found": int(np.isfinite(after).sum()), "of": len(after), "most": steps}
        found |= {"steps": float(np.median(after)), "wealth": trained[0][0]}
        rows.append({"fault": fault, "audit": audit, "adjacency": adjacency} | found)
    return pd.DataFrame(rows)


def measured(cell):
    """The row of a cell. An audit that suits the fault has more and longer trainings."""
    fault, audit, adjacency = (cell[name] for name in CELL)
    best = BEST[fault] == (audit, adjacency)
    steps = 2000 if audit == "record, not seen yet" else 500 if best else 300
    table = detection([(fault, audit, adjacency)], steps=steps, seeds=range(5 if best else 3))
    return table.drop(columns=["wealth", *CELL]).to_dict("records")


if __name__ == "__main__":
    torch.set_num_threads(1)
    continued(sys.argv[1], CELL, all_cells(), measured)
