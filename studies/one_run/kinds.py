"""Kinds of pairs in one training, their scores, and ideal pairs."""

from dataclasses import replace

import numpy as np
import torch

from dpsub import accounting, audit_one_run, crafters, models
from dpsub.models import Linear
from dpsub.trainers import assemble
from studies.one_run import bridge as one_run_bridge
from studies.one_run.bridge import DELTA, SHARES, bound_of_guesses, guesses_of
from studies.one_run.head_scores import HeadScores, fair_coins
from studies.one_run.pairs import natural_pairs, unused_feature_pairs
from studies.scores import separation
from studies.trainings import ON_A_CPU

LAW = {"sample_rate": 0.05, "steps": 300}
LARGE = 10.0  # an unused pixel's value, where others are at most 1
CENTRES = {"final": "median", "plain": "median"}  # others are centred at 0


def flat(task):
    """The task with images as rows of pixels."""
    images = {part: getattr(task, part) for part in ("x_train", "x_aux", "x_test")}
    return replace(task, **{part: x.reshape(len(x), -1) for part, x in images.items()})


def spec_of(**law):
    """DP-SGD with this sample rate and these steps, or those of `LAW`."""
    return one_run_bridge.spec_of(law or LAW, learning_rate=1.0)


def pairs_of(kind, task, model, spec, pairs, seed):
    """The pairs of a kind, by the crafters of dpsub."""
    made, extra = {
        "gradient": (crafters.gradient_pairs, {}),
        "mislabeled": (crafters.mislabeled_pairs, {}),
        "natural": (natural_pairs, {}),
        "attribute": (crafters.attribute_pairs, {"columns": int(task.x_train.var(axis=0).argmax())}),
        "unused": (unused_feature_pairs, {}),
        "unused, large": (unused_feature_pairs, {"value": LARGE}),
    }[kind]
    return made(task, model, spec, pairs=pairs, seed=seed, **extra)


def models_of(task, width=0):
    """A linear head, or a network with one hidden layer."""
    return models.mlp(task, (width,)) if width else models.linear(task)


def scores_of(task, model, made, spec, *, models, whiten, seed):
    """The scores (models, pairs) of the same trainings in up to four ways, bits, and accuracy (models,).

    And the separation that noise and a pair's own sampling would leave: of pairs of records on linear heads, else None.
    """
    if made.of_records and isinstance(model, Linear):
        bits = fair_coins(models, len(made), seed)
        found = HeadScores(task, model, made, spec, bits, whiten=whiten, seed=seed)
        root_mean_square = float(np.sqrt(np.square(found.alone).mean()))
        return found.scores, bits, found.accuracy, round(root_mean_square, 4)
    common = {"models": models, "metrics": ("accuracy",), "seed": seed} | ON_A_CPU
    ways = {"plain": {"subtract_expected": False}, "expected": {}}
    ways |= {"whitened": {"whiten": whiten}} if whiten else {}
    seen = {name: audit_one_run(task, model, made, spec, **common, **how) for name, how in ways.items()}
    plain = seen["plain"]
    scores = {"final": plain.score.values} | {name: one.step_score.values for name, one in seen.items()}
    return scores, plain.bit.values, plain.accuracy.values, None


# How many of m gradient pairs are guessed. Those of a rule share alpha.
RULES = {"half": (0.5,), "a quarter": (0.25,), "a tenth": (0.1,), "5 %, 20 %, all": SHARES}


def ideal_scores(spec, shape, draws):
    """Scores of gradient pairs that nothing else touches, and their coins, by their exact law.

    A pair ±C on a parameter of its own is in a batch with probability q, and the noise of all steps is added to it.
    """
    bits = draws.integers(0, 2, shape)
    batches = draws.binomial(spec.steps, spec.sample_rate, shape)
    noise = spec.noise_multiplier * np.sqrt(spec.steps)
    return (1 - 2 * bits) * batches + noise * draws.normal(size=shape), bits


def gaussian_scores(mu, shape, draws):
    """Scores of pairs whose worlds are N(μ/2, 1) and N(−μ/2, 1)."""
    bits = draws.integers(0, 2, shape)
    return mu * (0.5 - bits) + draws.normal(size=shape), bits


def by_rule(scores, bits):
    """The "gdp" bounds of one training by each rule, and "product"."""
    found = {name: bound_of_guesses(guesses_of(scores, bits, shares)) for name, shares in RULES.items()}
    return found | {"product": bound_of_guesses(guesses_of(scores, bits, (1.0,)), "product")}


def repeated(make, audits):
    """Bounds by rule of several audits, each rounded, and separation."""
    tables, apart = [], []
    for _ in range(audits):
        scores, bits = make()
        tables.append(by_rule(scores, bits))
        apart.append(separation(scores, bits))
    bounds = {name: [round(one[name], 4) for one in tables] for name in tables[0]}
    return {"separation": round(float(np.mean(apart)), 4), "bounds": bounds}


def without_pairs(task, model, spec, models, seed):
    """(models,) test accuracy with all private records as they are."""
    generator = torch.Generator().manual_seed(seed)
    bank = assemble(model, task, spec, bits=np.zeros(models, dtype=np.int8), generator=generator)
    for _ in bank.train():
        pass
    x, y = torch.tensor(task.x_test), torch.tensor(task.y_test)
    return bank.accuracy(x, y, models).tolist()


def of_gradients(task, spec, *, pairs, models, audits, seed):
    """Trainings with gradient pairs, and ideal canaries beside them."""
    model, shape = models_of(task), (1, pairs)
    made = pairs_of("gradient", task, model, spec, pairs, seed)
    how = {"subtract_expected": False}  # of such pairs it is hardly anything
    how |= {"models": models, "metrics": ("accuracy",), "seed": seed}
    seen = audit_one_run(task, model, made, spec, **how, **ON_A_CPU)
    each = iter(zip(seen.step_score.values, seen.bit.values, strict=True))
    draws = np.random.default_rng(seed)
    stated = accounting.epsilon(**spec.mechanism, delta=DELTA, adjacency="substitute")
    mu = accounting.gdp_mu(stated, DELTA)
    return {
        "records": len(task.y_train),
        "pairs": pairs,
        "hidden_state": round(accounting.worst_case_epsilon(**spec.mechanism, delta=DELTA), 4),
        "stated": round(stated, 4),
        "unmoved": made.details["unmoved"],
        "accuracy": [round(float(one), 5) for one in seen.accuracy],
        "without": [round(one, 5) for one in without_pairs(task, model, spec, 2, seed)],
        "trained": repeated(lambda: next(each), models),
        "exact": repeated(lambda: ideal_scores(spec, shape, draws), audits),
        "gaussian": repeated(lambda: gaussian_scores(mu, shape, draws), audits),
    }
