"""Gradient pairs in one training, beside ideal canaries."""

import numpy as np
import torch

from dpsub import accounting, audit_one_run
from dpsub.trainers import assemble
from own_code.bridge import DELTA, SHARES, bound, counted, separation
from own_code.pair_scores import models_of, pairs_of

# How many of m gradient pairs are guessed. Those of a rule share alpha.
RULES = {
    "half": (0.5,),
    "a quarter": (0.25,),
    "a tenth": (0.1,),
    "5 %, 20 %, all": SHARES,
}


def ideal_scores(spec, shape, draws):
    """Scores of gradient pairs that nothing else touches, and their coins.

    The law is exact: one pair ±C on a parameter of its own is in a batch
    with probability q, and the noise of all steps is added to it.
    """
    bits = draws.integers(0, 2, shape)
    batches = draws.binomial(spec.steps, spec.sample_rate, shape)
    noise = spec.noise_multiplier * np.sqrt(spec.steps)
    scores = (1 - 2 * bits) * batches + noise * draws.normal(size=shape)
    return scores, bits


def gaussian_scores(mu, shape, draws):
    """Scores of pairs whose worlds are N(μ/2, 1) and N(−μ/2, 1)."""
    bits = draws.integers(0, 2, shape)
    return mu * (0.5 - bits) + draws.normal(size=shape), bits


def by_rule(scores, bits):
    """The "gdp" bounds of one training by each rule, and "product"."""
    found = {
        name: bound(counted(scores, bits, shares))
        for name, shares in RULES.items()
    }
    every = counted(scores, bits, (1.0,))
    return found | {"product": bound(every, "product")}


def repeated(make, audits):
    """Bounds by rule of several audits, each rounded, and separation."""
    tables, apart = [], []
    for _ in range(audits):
        scores, bits = make()
        tables.append(by_rule(scores, bits))
        apart.append(separation(scores, bits))
    bounds = {
        name: [round(one[name], 4) for one in tables] for name in tables[0]
    }
    return {"separation": round(float(np.mean(apart)), 4), "bounds": bounds}


def without_pairs(task, model, spec, models, seed):
    """(models,) test accuracy with all private records as they are."""
    bank = assemble(
        model,
        task,
        spec,
        bits=np.zeros(models, dtype=np.int8),
        generator=torch.Generator().manual_seed(seed),
    )
    for _ in bank.train():
        pass
    x, y = torch.tensor(task.x_test), torch.tensor(task.y_test)
    return bank.accuracy(x, y, models).tolist()


def of_gradients(task, spec, *, pairs, models, audits, seed):
    """Trainings with gradient pairs, and ideal canaries beside them."""
    model, shape = models_of(task), (1, pairs)
    made = pairs_of("gradient", task, model, spec, pairs, seed)
    seen = audit_one_run(
        task,
        model,
        made,
        spec,
        models=models,
        subtract_expected=False,  # of such pairs it is hardly anything
        metrics=("accuracy",),
        seed=seed,
        device="cpu",
        progress=False,
    )
    each = iter(zip(seen.step_score.values, seen.bit.values, strict=True))
    draws = np.random.default_rng(seed)
    hidden = accounting.worst_case_epsilon(**spec.mechanism, delta=DELTA)
    stated = accounting.epsilon(
        **spec.mechanism, delta=DELTA, adjacency="substitute"
    )
    mu = accounting.gdp_mu(stated, DELTA)
    return {
        "records": len(task.y_train),
        "pairs": pairs,
        "hidden_state": round(hidden, 4),
        "stated": round(stated, 4),
        "unmoved": made.details["unmoved"],
        "accuracy": [round(float(one), 5) for one in seen.accuracy],
        "without": [
            round(one, 5)
            for one in without_pairs(task, model, spec, 2, seed)
        ],
        "trained": repeated(lambda: next(each), models),
        "exact": repeated(lambda: ideal_scores(spec, shape, draws), audits),
        "gaussian": repeated(
            lambda: gaussian_scores(mu, shape, draws), audits
        ),
    }
