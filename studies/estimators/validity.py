"""How often bounds are wrong and how loose they are, where ε is known.

``python -m studies.estimators.validity FILE`` measures all that the book shows of runs, in about an hour on two cores.
With ``steps`` behind the file, it measures what the book shows of steps. It resumes after an interruption.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from scipy.special import ndtri
from scipy.stats import binomtest

from dpsub import accounting, estimators
from dpsub.figures import PALETTES, number
from studies.estimators import known_truths
from studies.estimators.known_truths import (
    Drifting,
    Gaussian,
    RandomizedResponse,
    SampledGaussian,
    SortedByLuck,
    strongest_scores,
)
from studies.grids import draw_grid
from studies.kept import continued, read_json

DELTA = 1e-5
RUNS = (256, 1_000, 5_000, 50_000)  # at which the study measures bounds
OBSERVATIONS = (200, 500, 1_000, 2_000, 5_000, 20_000, 100_000)


@dataclass(frozen=True)
class Cell:
    """One measurement: a way to bound ε, and audits of a known truth."""

    method: str  # the claim, by the name of the table's column
    threshold: str | float  # the rule; "fixed" is the choice of someone who knows the truth
    runs: int
    truth: object  # one of `known_truths`
    delta: float = DELTA
    audits: int = 400
    alpha: float = 0.05

    @property
    def mechanism(self):
        """The further arguments of claim "pld"."""
        if self.method != "pld":
            return {}
        law = {"sample_rate": 1.0, "steps": 1}
        if isinstance(self.truth, SampledGaussian):
            law = {name: getattr(self.truth, name) for name in law}
        return law | {"adjacency": "substitute"}


def measure(cell, seed=0):
    """How many of a cell's bounds exceeded the truth, their mean and spread divided by it, and what they claim.

    And `mean_mu`, the mean bound on μ divided by the truth's, where both are μ-GDP.
    """
    truth = cell.truth.epsilon(cell.delta)
    rule = cell.threshold
    if rule == "fixed":  # where both rates are equal
        fpr = np.linspace(0.0, 1.0, 100_001)
        rule = float(-ndtri(fpr[np.argmin(np.abs(cell.truth.tradeoff(fpr) - fpr))]))
    bounds = []
    for audit in range(cell.audits):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4, audit)))
        bits = rng.integers(0, 2, cell.runs)
        bounds.append(
            estimators.epsilon_lower_bound(
                strongest_scores(cell.truth, bits, rng),
                bits,
                delta=cell.delta,
                claim=cell.method,
                rule=rule,
                alpha=cell.alpha,
                **cell.mechanism,
            )
        )
    epsilons = np.array([bound.epsilon for bound in bounds])
    row = {
        "wrong": int((epsilons > truth * (1 + 1e-9)).sum()),
        "audits": cell.audits,
        "mean": float(epsilons.mean() / truth),
        "spread": float(epsilons.std() / truth),
        "truth": truth,
        "valid": bounds[0].valid,
        "assumes": bounds[0].assumes,
    }
    if isinstance(cell.truth, Gaussian) and cell.method == "gdp":
        row["mean_mu"] = float(np.mean([bound.mu for bound in bounds]) / cell.truth.mu)
    return row


def cells_of_runs():
    """Each claim where its assumption holds, then where "gdp" fails."""
    sampled = SampledGaussian(1.0, 0.0625, 500)
    for mu in (0.5, 1.0, 2.0):
        noise = accounting.noise_multiplier(
            target_epsilon=accounting.gdp_epsilon(mu, DELTA),
            sample_rate=sampled.sample_rate,
            steps=sampled.steps,
            delta=DELTA,
            adjacency="substitute",
        )
        for claim in estimators.CLAIMS:
            if claim == "bayes_pld":  # whose curves are those of the others, and take hours
                continue
            truth = Gaussian(mu)
            if claim == "pld":
                truth = replace(sampled, noise_multiplier=noise)
            for rule in ("ranks", "split", "fixed", "best"):
                if rule == "ranks" and not estimators.CLAIMS[claim].exact:
                    continue
                for runs in RUNS:
                    slow = runs > 5_000 or claim == "pld"
                    audits = 200 if claim.startswith("bayes") else 400 if slow else 1_000
                    yield Cell(claim, rule, runs, truth, audits=audits)
    rare = SampledGaussian(0.6, 0.01, 50)
    # A threshold whose false-positive rate is far below δ.
    high = float(-ndtri(0.001))
    for other, rule, runs, delta in (
        (RandomizedResponse(1.0), "ranks", 5_000, DELTA),
        (SampledGaussian(1.0, 0.9, 1), "ranks", 5_000, DELTA),
        (rare, "ranks", 5_000, DELTA),
        (rare, high, 50_000, 0.05),
    ):
        for claim in ("gdp", "dp", "pld"):
            if claim != "pld" or isinstance(other, SampledGaussian):
                yield Cell(claim, rule, runs, other, delta=delta)


def cells_of_steps():
    """Claims and rules by ε, bets by μ, and what depends on the past."""
    ways = (("gdp", "ranks"), ("gdp", "best"), ("dp", "ranks"), ("dp", "best"), ("gdp", "bets"))
    for epsilon in (1.0, 2.0, 4.0, 6.0, 8.0, 16.0):
        truth = Gaussian(accounting.gdp_mu(epsilon, DELTA))
        for claim, rule in ways:
            for count in OBSERVATIONS:
                slow = rule == "bets" or count == OBSERVATIONS[-1]
                audits = 100 if slow else 400
                yield Cell(claim, rule, count, truth, audits=audits)
    for mu in (0.5, 1.0, 2.0):
        for rule in ("bets", "ranks"):
            for count in (1_000, 5_000, 20_000):
                yield Cell("gdp", rule, count, Gaussian(mu), audits=100)
    for past in (Gaussian(0.1), Drifting(0.1), SortedByLuck(0.1)):
        for rule in ("ranks", "bets"):
            yield Cell("gdp", rule, 640, past, audits=1_000)


STUDIES = {"runs": cells_of_runs, "steps": cells_of_steps}


def key(cell):
    """A cell as a file names it."""
    return asdict(cell) | {"truth": {"kind": type(cell.truth).__name__} | asdict(cell.truth)}


def compare(rules, *, runs, mu, audits, seed):
    """How often each rule exceeds the truth, and its mean bound over it, on the same audits of a 1-GDP mechanism."""
    cells = [Cell("gdp", rule, runs, Gaussian(mu), audits=audits) for rule in rules]
    return pd.DataFrame([measure(cell, seed=seed) for cell in cells], index=rules)


def stored(path):
    """The measurements in a file, with the share of bounds that exceed the truth, as `with_shares` gives it."""
    rows = pd.json_normalize(read_json(path)["rows"]).drop(columns="cell.audits")
    rows.columns = rows.columns.str.removeprefix("cell.")
    return with_shares(rows, "wrong")


def with_shares(rows, counted):
    """Rows with the share of audits that a column counts, and its 95 % Clopper–Pearson interval: `low` and `high`."""
    counts = zip(rows[counted].tolist(), rows["audits"].tolist(), strict=True)
    ends = [binomtest(*count).proportion_ci() for count in counts]
    share = rows[counted] / rows["audits"]
    return rows.assign(share=share, low=[end.low for end in ends], high=[end.high for end in ends])


def near_and_far(path):
    """The measurements of runs in a file: where the claims' assumptions hold, and where that of "gdp" does not."""
    rows = stored(path)
    misled = rows["truth.sample_rate"].isin([0.9, 0.01]) | rows["truth.kind"].eq("RandomizedResponse")
    return rows[~misled], rows[misled]


def draw_every(near):
    """Every claim under every rule, by the number of runs."""
    cells = near.groupby(["method", "threshold", "valid", "runs"]).agg({"share": "max", "mean": "mean"})
    cells = cells.unstack().reindex(estimators.CLAIMS, level=0).rename(columns=number, level="runs")
    new_method = np.diff(cells.index.codes[0], prepend=0) != 0
    cells.index = [f"{claim}, {rule}{'' if valid else ' (not valid)'}" for claim, rule, valid in cells.index]
    draw_cells(cells, height=5, rules=np.flatnonzero(new_method))


def draw_misled(far):
    """Mechanisms that are not Gaussian, by claim."""
    names = {0.9: "one step, q = 0.9, σ = 1", 0.01: "50 steps, q = 0.01, σ = 0.6"}
    kinds = far["truth.sample_rate"].map(names).fillna("randomised response")
    mechanism = kinds + ",\nδ = " + far["delta"].map(number) + far["truth"].map(", ε = {:.2f}".format)
    cells = far.assign(mechanism=mechanism).pivot(index="mechanism", columns="method", values=["share", "mean"])
    draw_cells(cells.reindex(columns=["gdp", "dp", "pld"], level=1), height=2.2)


def draw_cells(rows, *, height, rules=()):
    """Of many cells the share of bounds that exceed the truth, and the mean bound over it, as two grids of numbers.

    Columns of `rows` are (share, …) and (mean, …); above the rows `rules` a line separates groups.
    """
    _, (wrong, tight) = plt.subplots(1, 2, figsize=(6.8, height), sharey=True)
    valid, (invalid, over, *_) = PALETTES["valid"][0], PALETTES["not valid"]
    browns = LinearSegmentedColormap.from_list("", ["white", invalid])
    teals = LinearSegmentedColormap.from_list("", ["white", valid])
    teals = teals.with_extremes(over=over)
    for ax, values, text, shades in (
        (wrong, 100 * rows["share"], "{:.1f}", (browns, 5, 50)),
        (tight, rows["mean"], "{:.2f}", (teals, 0, 1)),
    ):
        texts = values.map(text.format).replace("nan", "")
        draw_grid(ax, values, texts=texts, shades=shades, rules=rules)
    wrong.set_title("bounds above the truth (%)")
    tight.set_title("mean bound / truth")


def draw_rules(rows, *, names, alpha=0.05):
    """How often bounds of each rule exceed the truth, by runs, and how often they may; hollow if they are not valid.

    Bars are 95 % binomial intervals; the points of the rules stand side by side.
    """
    fig, ax = plt.subplots(figsize=(3.4, 3.3))
    colors = {valid: cycle(PALETTES["valid" if valid else "not valid"]) for valid in (True, False)}
    for (rule, name), marker, beside in zip(names.items(), "os^D", (1, 0.85, 1.18, 1.39), strict=False):
        of_rule = rows[rows["threshold"].eq(rule)].sort_values("runs")
        valid = bool(of_rule["valid"].all())
        look = {} if valid else {"linestyle": "--", "mfc": "white"}
        label = name if valid else f"{name} (not valid)"
        look |= {"color": next(colors[valid]), "marker": marker, "label": label}
        x = beside * of_rule["runs"]
        ax.plot(x, 100 * of_rule["share"], **look)
        ax.vlines(x, 100 * of_rule["low"], 100 * of_rule["high"], color=look["color"], linewidth=0.9, zorder=1)
    ax.axhline(100 * alpha, color="black", linestyle=":", linewidth=0.9, label="allowed")
    ax.set(xscale="log", xlabel="runs, both worlds", ylabel="bounds above the truth (%)")
    ax.set_xticks(RUNS, [number(count) for count in RUNS])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    fig.legend(loc="outside upper center")


def measured(cell):
    """The row of a cell that is named as in a file."""
    truth = dict(cell["cell"]["truth"])
    kind = getattr(known_truths, truth.pop("kind"))
    return [measure(Cell(**cell["cell"] | {"truth": kind(**truth)}))]


def make(path, cells):
    """Measure the cells that a file does not hold yet, those with most runs first."""
    named = [(key(cell),) for cell in sorted(cells, key=lambda cell: -cell.runs)]
    with ProcessPoolExecutor() as pool:
        continued(path, ("cell",), named, measured, mapped=pool.map, clock=time.monotonic)


if __name__ == "__main__":
    make(sys.argv[1], STUDIES[sys.argv[2] if len(sys.argv) > 2 else "runs"]())
