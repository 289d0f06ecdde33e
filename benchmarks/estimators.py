"""Estimators against the papers' loop over thresholds, and against jax-privacy's auditing module where it is installed.

Every ratio is of two times in one run: above 1, dpsub is faster. jax-privacy can be installed with
`.venv/bin/pip install jax-privacy`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.special import betaincinv, ndtri

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import CLAIMS, LowerBound, epsilon_lower_bound

try:
    from jax_privacy import auditing
except ImportError:
    auditing = None

Result = TypeVar("Result")

DELTA = 1e-5
MECHANISM = {"sample_rate": 0.0625, "steps": 500, "adjacency": "substitute"}


def naive_mu(scores: np.ndarray, bits: np.ndarray) -> float:
    positives, negatives = scores[bits == 0], scores[bits == 1]
    best = 0.0
    for cut in scores:
        false_positives, false_negatives = (negatives > cut).sum(), (positives <= cut).sum()
        if false_positives == len(negatives) or false_negatives == len(positives):
            continue
        fpr = betaincinv(false_positives + 1, len(negatives) - false_positives, 0.975)
        fnr = betaincinv(false_negatives + 1, len(positives) - false_negatives, 0.975)
        best = max(best, -ndtri(fpr) - ndtri(fnr))
    return best


def seconds(call: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def bound(scores: np.ndarray, bits: np.ndarray, claim: str = "gdp", rule: str | float = "best") -> LowerBound:
    known = MECHANISM if claim == "pld" else {}
    found = epsilon_lower_bound(scores, bits, delta=DELTA, claim=claim, rule=rule, **known)
    assert isinstance(found, LowerBound)
    return found


def against_the_loop(scores: np.ndarray, bits: np.ndarray) -> None:
    naive, mu = seconds(lambda: naive_mu(scores, bits))
    for rule in ("best", "ranks"):
        own, found = seconds(lambda rule=rule: bound(scores, bits, rule=rule))
        print(f"{len(bits)} runs, gdp, {rule}: {own:.3f} s, {naive / own:.0f} times as fast as a loop over thresholds")
        assert rule != "best" or abs(found.mu - mu) < 1e-9


def against_jax_privacy(scores: np.ndarray, bits: np.ndarray) -> None:
    """Its default strategy divides alpha by the number of thresholds, so both sides are valid."""
    auditor = auditing.CanaryScoreAuditor(scores[bits == 0], scores[bits == 1])
    peers = {
        "gdp": lambda: auditor.epsilon_from_gdp(0.05, DELTA),
        "dp": lambda: auditor.epsilon_clopper_pearson(0.05, DELTA, one_sided=False),
    }
    for claim, peer in peers.items():
        own, found = seconds(lambda claim=claim: bound(scores, bits, claim, "ranks"))
        theirs, epsilon = seconds(peer)
        print(
            f"{len(bits)} runs, {claim}, ranks: {own:.3f} s, {theirs / own:.2g} times as fast as jax-privacy; "
            f"ε ≥ {found.epsilon:.3f}, jax-privacy's is {float(epsilon):.3f}"
        )


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    for runs in (5_000, 50_000):
        bits = rng.integers(0, 2, runs)
        scores = rng.normal(size=runs) + (bits == 0)
        against_the_loop(scores, bits)
        if auditing is not None:
            against_jax_privacy(scores, bits)
        for claim, rule in itertools.product(CLAIMS, ("ranks", "split", 0.5, "best")):
            if rule != "ranks" or CLAIMS[claim].exact:
                own, found = seconds(partial(bound, scores, bits, claim, rule))
                print(f"{runs} runs, {claim}, {rule}: {own:.3f} s, ε ≥ {found.epsilon:.3f}")
    bits = rng.integers(0, 2, 2_500)
    curve = rng.normal(size=(2_500, 20)) + np.outer(bits == 0, np.linspace(0.1, 2, 20))
    own, found = seconds(lambda: epsilon_lower_bound(curve, bits, delta=DELTA))
    print(f"2500 runs, 20 steps, gdp, ranks: {own:.3f} s")
    steps = {**MECHANISM, "steps": range(25, 501, 25)}
    own, _ = seconds(lambda: epsilon_lower_bound(curve, bits, delta=DELTA, claim="pld", **steps))
    print(f"2500 runs, 20 steps, pld, ranks: {own:.2f} s, {own / 20:.2f} s a point")
    if auditing is None:
        print("jax-privacy is not installed: not compared")
    assert abs(found[-1].epsilon - gdp_epsilon(found[-1].mu, DELTA)) < 1e-9
