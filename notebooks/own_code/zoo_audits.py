"""Audits of the trainings of the zoo, by name.

Those in `AUDITS` return the log-wealth of their bets after each step, and
after how many steps the training was refuted: None if it was not.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dpsub.estimators.claims import GDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected
from dpsub.opacus import SubstitutePRVAccountant, audit_optimizer
from own_code import record_audit, zoo
from own_code.zoo_training import Training

DELTA, ALPHA = 1e-5, 0.05
LITTLE = 0.3  # a noise multiplier at which batches show who is in them


def bets(scores, bits, *, noise_multiplier, adjacency, sample_rate=1.0):
    """The log-wealth, after each step, of bets against what is claimed.

    Returns:
        Its path, and after how many steps it reached 1/α, or None.
    """
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


def beside(trainer, *, adjacency, steps, seed, **asked):
    """A canary beside the records: `audit_optimizer`."""
    training = Training(trainer, seed=seed)
    return _audit(training, adjacency, steps, seed, asked)


def alone(trainer, *, noise_multiplier, adjacency, steps, seed, stop=False):
    """The audit of an optimizer without records: its canary alone.

    Args:
        noise_multiplier: what is claimed.
        stop: whether to stop when the claim is refuted.
    """
    torch.manual_seed(seed)
    weights = torch.nn.Parameter(torch.zeros(100))
    optimizer = trainer.optimizer(
        torch.optim.SGD([weights], lr=0.1),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=30,
    )
    auditor = audit_optimizer(
        optimizer,
        delta=DELTA,
        adjacency=adjacency,
        alpha=ALPHA,
        sample_rate=0.1,
        seed=seed,
    )
    for _ in range(steps):
        weights.grad_sample = torch.zeros(0, 100)
        optimizer.step()
        optimizer.zero_grad()
        if stop and auditor.refuted:
            break
    return auditor


def against(trainer, *, adjacency, steps, seed):
    """A canary that points against all other records, copies of one.

    Batches have a fixed size, so the sum of the others hardly varies.
    """
    trainer = replace(trainer, loader=zoo.shuffled)
    training = Training(trainer, alike=True, learning_rate=1e-3, seed=seed)
    x, y, _ = training.data[-1:]
    training.gradients_of(x, y)
    asked = {
        "canary": [-p.grad_sample[0] for p in training.optimizer.params]
    }
    return _audit(training, adjacency, steps, seed, asked)


def _audit(training, adjacency, steps, seed, asked):
    optimizer = training.optimizer
    auditor = audit_optimizer(
        optimizer,
        delta=DELTA,
        adjacency=adjacency,
        alpha=ALPHA,
        sample_rate=training.sample_rate,
        seed=seed,
        **asked,
    )
    for _ in training.batches():
        optimizer.step()
        if auditor.steps == steps or auditor.refuted:
            break
    return _judged(auditor, optimizer.noise_multiplier, adjacency)


def remembered(trainer, *, adjacency, steps, seed):
    """Bets on noise that comes again, in an optimizer without records."""
    law = {"noise_multiplier": 2.0, "adjacency": adjacency}
    auditor = alone(trainer, steps=steps, seed=seed, **law)
    return _judged(auditor, **law, remember=True)


def _judged(auditor, noise_multiplier, adjacency, remember=False):
    seen = auditor.observations()
    scores, bits = seen.score.values.astype(float), seen.bit.values
    if remember:
        scores = record_audit.seen_before(scores, bits, adjacency=adjacency)
    return bets(
        scores, bits, noise_multiplier=noise_multiplier, adjacency=adjacency
    )


def among(
    trainer, *, adjacency, steps, seed, look="product", noise_multiplier=1.0
):
    """A canary among the records: the claim is of a subsampled step."""
    training = Training(
        trainer, noise_multiplier=noise_multiplier, seed=seed
    )
    product, shortness, bits = record_audit.observe(
        training, steps, adjacency=adjacency, seed=seed
    )
    law = {
        "noise_multiplier": noise_multiplier,
        "sample_rate": training.sample_rate,
    }
    scores, chosen = product, np.ones(steps, dtype=bool)
    if look == "length":
        scores = shortness
    elif look == "not seen yet":
        chosen = record_audit.not_seen_yet(product, bits, **law)
    path, after = bets(
        scores[chosen], bits[chosen], adjacency=adjacency, **law
    )
    growth = np.zeros(steps)
    growth[chosen] = np.diff(path, prepend=0.0)
    at = (
        None
        if after is None
        else int(np.flatnonzero(chosen)[after - 1]) + 1
    )
    return np.cumsum(growth)[:at], at


def sizes(trainer, *, adjacency, steps, seed):
    """What the accountant sees without a canary: the sizes of batches."""
    training = Training(trainer, seed=seed)
    accountant = SubstitutePRVAccountant()
    training.optimizer.attach_step_hook(
        accountant.get_optimizer_hook_fn(training.sample_rate)
    )
    for t, _ in enumerate(training.batches(), start=1):
        training.optimizer.step()
        try:
            accountant.check_sampling("poisson")
        except ValueError:
            return np.zeros(t), t
        if t == steps:
            return np.zeros(t), None


AUDITS = {
    "Dirac": beside,
    "Diracs": partial(beside, canary="diracs"),
    "constant": partial(beside, canary="constant"),
    "random": partial(beside, canary="random"),
    "random, anew": partial(beside, canary="random", anew=True),
    "Diracs of norm C": partial(beside, canary="diracs", canary_norm=1.0),
    "noise remembered": remembered,
    "against the others": against,
    "record": partial(among, noise_multiplier=LITTLE),
    "record, not seen yet": partial(
        among, look="not seen yet", noise_multiplier=LITTLE
    ),
    "length": partial(among, look="length"),
    "sizes": sizes,
}
