"""A task, its training, kinds of pairs, and scores of their coins."""

import numpy as np

from dpsub import audit_one_run, crafters, data, models
from dpsub.models import Linear
from own_code import bridge
from own_code.head_scores import HeadScores, fair_coins

LAW = {"sample_rate": 0.05, "steps": 300}
LARGE = 10.0  # an unused pixel's value, where others are at most 1
CENTRES = {"final": "median", "plain": "median"}  # others are centred at 0


def flat(task):
    """The task with images as rows of pixels."""
    x, x_aux, x_test = (
        one.reshape(len(one), -1)
        for one in (task.x_train, task.x_aux, task.x_test)
    )
    return data.from_arrays(
        x,
        task.y_train,
        x_aux=x_aux,
        y_aux=task.y_aux,
        x_test=x_test,
        y_test=task.y_test,
        num_classes=task.num_classes,
        name=task.name,
    )


def spec_of(**law):
    """DP-SGD with this sample rate and these steps, or those of `LAW`."""
    return bridge.spec_of(law or LAW, learning_rate=1.0)


def pairs_of(kind, task, model, spec, pairs, seed):
    """The pairs of a kind, by the crafters of dpsub."""
    made, extra = {
        "gradient": (crafters.gradient_pairs, {}),
        "mislabeled": (crafters.mislabeled_pairs, {}),
        "natural": (crafters.natural_pairs, {}),
        "attribute": (
            crafters.attribute_pairs,
            {"columns": int(task.x_train.var(axis=0).argmax())},
        ),
        "unused": (crafters.unused_feature_pairs, {}),
        "unused, large": (crafters.unused_feature_pairs, {"value": LARGE}),
    }[kind]
    return made(task, model, spec, pairs=pairs, seed=seed, **extra)


def models_of(task, width=0):
    """A linear head, or a network with one hidden layer."""
    return models.mlp(task, (width,)) if width else models.linear(task)


def scores_of(task, model, made, spec, *, models, whiten, seed):
    """The scores of the same trainings in up to four ways.

    Returns:
        Scores (models, pairs) by name, bits, accuracy (models,), and the
        separation that noise and a pair's own sampling would leave: of
        pairs of records on linear heads, else None.
    """
    if made.of_records and isinstance(model, Linear):
        bits = fair_coins(models, len(made), seed)
        found = HeadScores(
            task, model, made, spec, bits, whiten=whiten, seed=seed
        )
        return found.scores, bits, found.accuracy, rms(found.alone)
    common = {"models": models, "metrics": ("accuracy",), "seed": seed}
    common |= {"device": "cpu", "progress": False}
    audits = {
        "plain": {"subtract_expected": False},
        "expected": {},
        "whitened": {"whiten": whiten},
    }
    if not whiten:
        del audits["whitened"]
    seen = {
        name: audit_one_run(task, model, made, spec, **common, **how)
        for name, how in audits.items()
    }
    scores = {"final": seen["plain"].score.values}
    scores |= {name: one.step_score.values for name, one in seen.items()}
    any_of = seen["plain"]
    return scores, any_of.bit.values, any_of.accuracy.values, None


def rms(values):
    """The root of the mean square."""
    return round(float(np.sqrt(np.square(values).mean())), 4)
