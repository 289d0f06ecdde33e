"""What a look at the final model shows, and the most that it can show."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dpsub
from dpsub import accounting, audits, estimators, figures, findings
from studies.final_models.learned_scores import LearnedScore, learn
from studies.scores import epsilon_at
from studies.trainings import final_models

PARTS = 10  # of the models, to measure the error of a difference


def judged(task, model, pair, spec, *, runs, learning_runs, store=None, **options):
    """Final models, with the learned score and the canary's own; a store that is complete is read."""
    if store is not None and Path(store).exists() and audits.status(store).complete:
        return audits.load(store)
    what = task, model, pair, spec
    learned = learn(*what, runs=learning_runs, observe_every=spec.steps, **options)
    return final_models(*what, runs=runs, metrics=[LearnedScore(learned)], store=store, **options)


def ceiling_mu(task, model, pair, spec, *, runs, seed, device):
    """The μ of an adversary who watches every step, from new models."""
    watched = dpsub.audit(
        task, model, pair, spec, runs=runs, metrics=("distance",), seed=seed, device=device, progress=False
    )
    return findings.every_step_mu(watched)


def linear_limit_mu(task, model, pair, spec, *, runs, twins, seed, device):
    """The μ of the best linear look at the final parameters: the Mahalanobis distance of the worlds' means.

    Twins give the means' difference, and other models the covariance.
    """
    _, of_others, of_twins = audits.repeat_seeds(seed, 3)
    options = {"metrics": ("weights",), "device": device}
    held_out = final_models(task, model, pair, spec, runs=runs, seed=of_others, **options)
    with_z, with_z_prime = (
        final_models(task, model, one, spec, runs=twins, seed=of_twins, **options) for one in (pair, pair.exchanged())
    )
    signs = 1.0 - 2 * with_z.bit.values
    moved = with_z.weights.values.astype(float) - with_z_prime.weights.values
    return mahalanobis(moved * signs[:, None], held_out.weights.values, held_out.bit.values)


def mahalanobis(differences, weights, bits):
    """The distance of two means, without the bias of few models.

    Args:
        differences: (pairs, d), each with the means' difference as mean.
        weights: (models, d), Gaussian with one covariance in both worlds.
        bits: (models,), their worlds.
    """
    weights = weights.astype(np.float64)
    for bit in (0, 1):
        weights[bits == bit] -= weights[bits == bit].mean(axis=0)
    (pairs, d), freedom = differences.shape, len(weights) - 2
    factor = np.linalg.cholesky(weights.T @ weights / freedom)
    white = np.linalg.solve(factor, differences.T)
    # Products of different pairs only: a pair's own noise adds to its own.
    total = (white.sum(axis=1) ** 2).sum() - (white**2).sum()
    square = total / (pairs * (pairs - 1)) * (freedom - d - 1) / freedom
    return float(np.sqrt(max(square, 0.0)))


def row(audited, limits, *, delta):
    """What an audit from `judged` shows by either score, beside "limit" and "ceiling", each a μ, as far as known."""

    def estimate(score, rows):
        mu = findings.d_prime(score.values[rows, -1], bits[rows])
        return mu, epsilon_at(mu, delta)

    bits, found = audited.bit.values, {}
    scores = {"canary": audited.score, "learned": audited.learned}
    for name, score in scores.items():
        found[f"μ, {name}"], found[f"ε, {name}"] = estimate(score, slice(None))
        found[f"ε ≥, {name}"] = estimators.epsilon_lower_bound(score.values[:, -1], audited.bit, delta=delta).epsilon
    gains = []
    for part in (slice(i, None, PARTS) for i in range(PARTS)):
        own, learned = (estimate(one, part)[1] for one in scores.values())
        gains.append(learned - own)
    found["± of ε"] = float(np.std(gains, ddof=1) / np.sqrt(PARTS))
    for name in ("limit", "ceiling"):
        found[f"μ, {name}"] = mu = limits.get(name, np.nan)
        found[f"ε, {name}"] = accounting.gdp_epsilon(mu, delta) if np.isfinite(mu) else np.nan
    return found


def table(audited, limits, *, delta):
    """The rows of audits by name, of which `limits` has "NAME, limit" and "NAME, ceiling"."""
    rows = []
    for key, one in audited.items():
        there = {name: limits[f"{key}, {name}"] for name in ("limit", "ceiling") if f"{key}, {name}" in limits}
        place = {"network": key.split("-")[0], "q": one.sample_rate, "scenario": one.scenario, "η": one.learning_rate}
        rows.append(place | row(one, there, delta=delta))
    return pd.DataFrame(rows).set_index(["network", "q", "scenario", "η"]).sort_index()


def draw(heads, accountant, source):
    """Estimates by either score with a line to the valid bound, the limit and the ceiling: a panel for each q."""
    panels = sorted(heads.index.unique("q"), reverse=True)
    fig, axes = plt.subplots(1, len(panels), figsize=(6.8, 3.4), sharey=True, squeeze=False, layout="constrained")
    for ax, q in zip(axes[0], panels, strict=True):
        at = heads.loc[q]
        scenarios = at.index.get_level_values("scenario")
        x = np.arange(len(at)) + scenarios.factorize(sort=True)[0]
        for name, face, shift in (("canary", "white", -0.15), ("learned", None, 0.15)):
            for place, scenario, (_, one) in zip(x + shift, scenarios, at.iterrows(), strict=True):
                color = figures.LOOKS[scenario]["color"]
                ax.plot([place] * 2, [one[f"ε ≥, {name}"], one[f"ε, {name}"]], color=color, lw=1)
                ax.plot(place, one[f"ε, {name}"], marker="o", color=color, mfc=face or color)
        ax.plot(x, at["ε, limit"], "_", color="black", ms=13, mew=1.5)
        ax.plot(x, at["ε, ceiling"], "x", color="0.4", ms=6)
        ax.axhline(accountant, **figures.looks("substitute", label=None))
        ax.set_xticks(x, [f"{eta:g}" for _, eta in at.index], rotation=60)
        for scenario in scenarios.unique():
            ax.annotate(scenario, (x[scenarios == scenario].mean(), 0.3), ha="center")
        ax.set_xlabel(r"$\eta$")
        figures.tag(ax, f"q = {q:g}")
    axes[0, 0].set_ylim(0, 1.08 * accountant)
    axes[0, 0].set_ylabel(r"$\varepsilon$")
    marks = {
        "canary's score": {"marker": "o", "mfc": "white"},
        "learned score": {"marker": "o"},
        "linear limit": {"marker": "_", "ms": 12},
        "every step": {"marker": "x"},
    }
    look = {"linestyle": "none", "color": "0.25"}
    handles = [plt.Line2D([], [], label=label, **(look | mark)) for label, mark in marks.items()]
    fig.legend(
        handles=[*handles, plt.Line2D([], [], **figures.looks("substitute"))], loc="outside upper center", ncols=3
    )
    figures.name_source(fig, source)
    return fig
