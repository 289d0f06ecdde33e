"""Figures 1, 2, 4, 5, 13 and 14 of Tight Auditing: what claims make of observations."""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

from dpsub import accounting, estimators, figures
from studies.estimators.known_truths import Gaussian, RandomizedResponse
from studies.tight_auditing import formulas

FPR = np.linspace(0, 1, 2_001)
CUTS = np.linspace(-5, 6, 221)
SEEN = "#D55E00"  # what an attack reaches


def four_mechanisms(epsilon, delta):
    """Trade-off functions on FPR of mechanisms that are exactly (ε, δ)-DP, and of randomised response."""
    loss = epsilon - 2 * np.log1p(-delta)  # its δ(ε) is 1 − e^((ε − loss)/2)
    odds = (np.exp(epsilon) + delta) / (1 - delta)
    sampling = {"sample_rate": 0.1, "steps": 1, "adjacency": "add_remove"}
    noise = accounting.noise_multiplier(target_epsilon=epsilon, delta=delta, **sampling)
    curves = {
        "(ε, δ)-DP": formulas.from_lines(FPR, np.array([epsilon]), np.array([delta])),
        "Laplace": formulas.laplace(FPR, loss),
        "Gaussian": Gaussian(accounting.gdp_mu(epsilon, delta)).tradeoff(FPR),
        "Gaussian, q = 0.1": accounting.tradeoff(FPR, noise_multiplier=noise, **sampling),
    }
    return curves, RandomizedResponse(np.log(odds)).tradeoff(FPR)


def draw_mechanisms(curves, response, epsilon):
    """Figure 1."""
    fig, ax = plt.subplots(figsize=(3.9, 3.4), layout="constrained")
    figures.tradeoffs(ax, FPR, curves)
    ax.plot(FPR[::200], response[::200], "x", color="black", ms=4, label="randomised response")
    ax.legend(loc="upper right")
    figures.name_source(fig, f"computed; ε = {epsilon:g}")


def draw_regions(curves, at, missed, epsilon):
    """Figure 2: the rates that each claim allows, and those of an attack."""
    fig, ax = plt.subplots(figsize=(5.4, 3.3), layout="constrained")
    for name, label, color in (("(ε, δ)-DP", "(ε, δ)-DP", "0.85"), ("Gaussian", "μ-GDP", figures.COLORS[4])):
        lower = curves[name]
        ax.fill_between(FPR, lower, 1 - lower[::-1], color=color, alpha=0.7, label=f"possible by {label}")
    ax.plot([0, 1], [1, 0], color="0.4", ls=":", label="guessing")
    ax.plot(at, missed, "o", color=SEEN, ms=6, label="the best attack here")
    ax.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
    fig.legend(loc="outside right upper")
    figures.name_source(fig, f"computed; Gaussian mechanism, ε = {epsilon:g}")


def by_threshold(each, delta, rng):
    """Observations of both worlds, σ = 1, and the bound at each of CUTS by each claim."""
    worlds = rng.normal([[0.0], [1.0]], 1.0, (2, each))
    taken = (worlds[0] > CUTS[:, None]).sum(axis=1)
    lost = (worlds[1] <= CUTS[:, None]).sum(axis=1)
    return worlds, bounds(taken, lost, each, delta)


def bounds(taken, lost, each, delta):
    """Lower bounds on ε at 95 % confidence, by claim, from counts of errors among `each` observations of each world."""
    rates = formulas.upper(taken, each, 0.025), formulas.upper(lost, each, 0.025)
    return {
        "μ-GDP": np.array([accounting.gdp_epsilon(mu, delta) for mu in formulas.mu_gdp(*rates)]),
        "(ε, δ)-DP": formulas.epsilon_dp(*rates, delta),
    }


def near_by_exact_rates(delta):
    """The least and the largest threshold above the middle at which exact rates show 80 % of ε by (ε, δ)-DP."""
    cuts = np.arange(0.5, 6, 0.01)
    shown = formulas.epsilon_dp(norm.sf(cuts), norm.cdf(cuts - 1), delta)
    near = cuts[shown >= 0.8 * accounting.gdp_epsilon(1.0, delta)]
    return float(near[0]), float(near[-1])


def expected(each, delta, cuts=CUTS):
    """The bounds at each of some thresholds, if errors are as many as expected."""
    return bounds(*(np.round(each * rate).astype(int) for rate in (norm.sf(cuts), norm.cdf(cuts - 1))), each, delta)


def draw_thresholds(worlds, shown, delta):
    """Figure 4."""
    fig, (ax, below) = plt.subplots(
        2, 1, figsize=(6.4, 4.0), layout="constrained", sharex=True, height_ratios=(3, 1)
    )  # fmt: skip
    exact = formulas.epsilon_dp(norm.sf(CUTS), norm.cdf(CUTS - 1), delta)
    ax.axhline(accounting.gdp_epsilon(1.0, delta), color="black", ls="--", lw=1, label="truth")
    ax.plot(CUTS, exact, color="0.55", ls=":", label="(ε, δ)-DP, exact rates")
    for (name, values), color, style in zip(shown.items(), figures.COLORS, ("-", "-."), strict=False):
        ax.plot(CUTS, values, color=color, ls=style, label=name)
    best = formulas.best_threshold(1.0, delta)
    for place, label in ((best, "equation 18"), (1 - best, None)):
        ax.axvline(place, color="0.85", lw=5, zorder=0, label=label)
    ax.set_ylabel("lower bound on ε")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    bins = np.linspace(-5, 6, 89)
    below.hist(worlds[0], bins, color="0.75", label="z′")
    below.hist(worlds[1], bins, histtype="step", color="black", label="z")
    below.set_yticks([])
    below.set_xlabel("threshold, observation")
    below.legend(loc="upper left", bbox_to_anchor=(1, 1), title="world")
    figures.name_source(fig, f"simulated; {worlds.shape[1]:,} observations of each world")


def by_count(largest, repeats, delta, rng):
    """Mean bounds by the number of observations of each world, at thresholds that are fixed in advance."""
    numbers = 10 ** np.arange(2, np.log10(largest) + 0.1, 0.5)
    places = {"equation 18": formulas.best_threshold(1.0, delta), "z = 4.2": 4.2, "z = 3": 3.0, "z = 0.5": 0.5}
    means = {}
    for name, z in {"μ-GDP, z = 0.5": 0.5, **places}.items():
        claim, rates = "(ε, δ)-DP" if name in places else "μ-GDP", [norm.sf(z), norm.cdf(z - 1)]
        means[name] = [
            float(bounds(*rng.binomial(n, rates, (repeats, 2)).T, n, delta)[claim].mean())
            for n in numbers.astype(np.int64)
        ]
    return pd.DataFrame(means, index=numbers)


def share_at(z, count, audits, delta, rng):
    """The share of ε that (ε, δ)-DP shows at a threshold with `count` observations of each world; its error."""
    errors = rng.binomial(count, [norm.sf(z), norm.cdf(z - 1)], (audits, 2))
    shown = formulas.epsilon_dp(*formulas.upper(errors, count, 0.025).T, delta)
    shares = shown / accounting.gdp_epsilon(1.0, delta)
    return float(shares.mean()), float(shares.std() / audits**0.5)


def draw_counts(means, repeats, delta):
    """Figure 14."""
    fig, ax = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    ax.axhline(accounting.gdp_epsilon(1.0, delta), color="black", ls="--", lw=1, label="truth")
    for name, color, marker in zip(means, figures.COLORS, "osD^v", strict=True):
        label, style = (name, "-") if name[0] == "μ" else (f"(ε, δ)-DP, {name}", "-.")
        ax.plot(means[name], color=color, marker=marker, ms=3.5, label=label, ls=style)
    ax.set_xscale("log")
    ax.set(xlabel="observations of each world", ylabel="lower bound on ε")
    fig.legend(loc="outside right upper")
    figures.name_source(fig, f"binomial counts, mean of {repeats} audits")


def sampled(count, rate, sigma, rng, *, other=0):
    """Scores and bits of steps that hold the canary's slot with this rate: N(1, σ²) with z in it, N(other, σ²) else."""
    bits = rng.integers(0, 2, count)
    inside = rng.random(count) < rate
    return inside * np.where(bits == 0, 1, other) + rng.normal(0, sigma, count), bits


def of_sampled_step(rate, sigma, delta):
    """The curve of the best attack on such a step on FPR, those of two claims with the step's ε, and this ε."""
    step = {"noise_multiplier": sigma, "sample_rate": rate, "steps": 1, "adjacency": "add_remove"}
    z = np.linspace(-3, 4, 1_001)
    fpr, fnr = norm.sf(z / sigma), rate * norm.cdf((z - 1) / sigma) + (1 - rate) * norm.cdf(z / sigma)
    epsilon = accounting.epsilon(delta=delta, **step)
    claims = {
        "the mechanism (PLD)": accounting.tradeoff(FPR, **step),
        "μ-GDP of the same ε": Gaussian(accounting.gdp_mu(epsilon, delta)).tradeoff(FPR),
    }
    return np.interp(FPR, fpr[::-1], fnr[::-1]), claims, epsilon


def too_low(attack, claims, ranges):
    """By claim, and by the name of a range of false-positive rates, how far its curve is below the attack's on average.

    As a share of the attack's false-negative rate. "above" is how far the claim's curve is above it at most.
    """
    inside = {name: (low <= FPR) & (high >= FPR) for name, (low, high) in ranges.items()}
    return {
        claim: {name: float(1 - (fnr[there] / attack[there]).mean()) for name, there in inside.items()}
        | {"above": float((fnr - attack).max())}
        for claim, fnr in claims.items()
    }


def draw_sampled_step(scores, bits, attack, claims, source):
    """Figure 5."""
    fig, ax = plt.subplots(figsize=(3.9, 3.4), layout="constrained")
    figures.tradeoffs(ax, FPR, claims)
    cuts = np.linspace(-3, 4, 1_001)
    seen = [[(scores[bits == 1] > cut).mean() for cut in cuts], [(scores[bits == 0] <= cut).mean() for cut in cuts]]
    ax.plot(*seen, color=SEEN, lw=1.8, label="best attack, observed")
    ax.plot(FPR, attack, color="black", lw=1, ls=":", label="best attack, exact")
    ax.legend(loc="upper right")
    figures.name_source(fig, source)


def missed_at_half(count, rate, sigma, repeats, rng):
    """The share of z's observations below the median of z′'s, in each of some audits."""
    found = []
    for _ in range(repeats):
        scores, bits = sampled(count, rate, sigma, rng)
        found.append(float((scores[bits == 0] <= np.median(scores[bits == 1])).mean()))
    return found


def shares_found(audits, count, rate, sigma, delta, rng):
    """What the rank test finds of ε by three claims, under both adjacencies, in each audit."""
    rows = []
    ask = partial(estimators.epsilon_lower_bound, delta=delta)
    for adjacency, other in (("add_remove", 0), ("substitute", -1)):
        known = {"sample_rate": rate, "steps": 1, "adjacency": adjacency}
        truth = accounting.epsilon(noise_multiplier=sigma, delta=delta, **known)
        for _ in range(audits):
            scores, bits = sampled(count, rate, sigma, rng, other=other)
            for claim in ("pld", "gdp", "dp"):
                bound = ask(scores, bits, claim=claim, **(known if claim == "pld" else {}))
                rows.append((adjacency, claim, bound.epsilon / truth))
    return pd.DataFrame(rows, columns=["adjacency", "claim", "share"])


def curve_of_lines(counts, delta, training):
    """The trade-off function of a training on FPR, and what Algorithm 4 makes of it with so many pairs (ε, δ)."""
    whole, traced = accounting.tradeoff(FPR, **training), {}
    for count in counts:
        pairs = formulas.lines(lambda one: accounting.epsilon(delta=one, **training), count, delta)
        traced[count] = *pairs, formulas.from_lines(FPR, *pairs)
    return whole, traced


def shown_by_lines(count, delta, training, epsilons, *, least=0.05):
    """The rates of the best attack on a training, and the largest of some ε that they refute by Algorithm 4's lines.

    The training has the median of these ε, which increase. Rates are the FPR at which neither of the two is below
    `least`.
    """
    curves = []
    for epsilon in epsilons:
        noise = accounting.noise_multiplier(target_epsilon=epsilon, delta=delta, **training)
        pairs = formulas.lines(
            lambda one, noise=noise: accounting.epsilon(delta=one, noise_multiplier=noise, **training), count, delta
        )
        curves.append(formulas.from_lines(FPR, *pairs))
        if epsilon == np.median(epsilons):
            whole = accounting.tradeoff(FPR, noise_multiplier=noise, **training)
    inside = np.minimum(FPR, whole) >= least
    falling = np.array(curves)[:, inside].T
    shown = [np.interp(-missed, -fnr, epsilons) for missed, fnr in zip(whole[inside], falling, strict=True)]
    return FPR[inside], np.array(shown)


def draw_lines(whole, traced, count, source):
    """Figure 13, and beside it the minimum of the lines."""
    fig, ax = plt.subplots(figsize=(3.9, 3.4), layout="constrained")
    figures.tradeoffs(ax, FPR, {f"{some} pairs": curve for some, (*_, curve) in traced.items()})
    ax.plot(FPR, whole, color="black", lw=0.8, label="exact")
    least = formulas.from_lines(FPR, *traced[count][:2], combine=np.min)
    ax.plot(FPR, least, color=SEEN, lw=2, ls=":", clip_on=False, label=f"minimum of {count}")
    ax.legend(loc="upper right")
    figures.name_source(fig, source)
    return least
