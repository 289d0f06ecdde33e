"""Explorers without a kernel: pages that compute in the reader's browser.

`training_page` composes DP-SGD for the reader's own parameters,
`attacker_page` reads an (ε, δ), `runs_page` plans audits, `drifting_scores`
animates an audit, and `which_audit_page` recommends one. Each is a page of
HTML that needs no kernel and loads nothing.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dpsub import accounting, audits, estimators, findings

ROOT = Path(__file__).parents[2]
ASSETS = Path(__file__).with_name("assets")
# Of the settings of the tests, how far the page's ε is from the
# accountant's at most, in percent.
CHECKED, WITHIN = 150, 0.6
DELTA = 1e-5
MOST_STEPS = 40  # of an animation; of more, as many at even distances
# Quantiles of the scores that the histograms hold. The others go into the
# outer bars.
NEAR, FAR = 0.0005, 0.9995
# Trainings such as a reader has; presets.html says of what.
TRAININGS = {
    "mnist": {"sigma": 1.1, "q": 0.00427, "steps": 14_063, "delta": 1e-5},
    "census": {"sigma": 2, "q": 0.0157, "steps": 1_272, "delta": 1e-5},
    "texts": {"sigma": 0.8, "q": 0.025, "steps": 400, "delta": 1e-5},
}
# The training that is audited from outside, and step by step.
TRAINING = "digits-linear-blank-substitute"
PAIRS = 200


@dataclass(frozen=True)
class Page:
    """HTML that a notebook displays unchanged."""

    data: str

    def _repr_html_(self):
        return self.data

    def __repr__(self):
        return f"Page({len(self.data):,} characters of HTML)"


def filled(template, **values):
    """A template of the assets.

    {{style}} stands for the style sheet, {{its name}} for each value, which
    is a page or becomes JSON, and any other {{name}} for the script or the
    piece of HTML of that name.
    """

    def text(found):
        name = found[1]
        if isinstance(values.get(name), Page):
            return values[name].data
        if name in values:
            told = json.dumps(values[name], separators=(",", ":"), allow_nan=False)
            # It stands in a script element, which it must not end.
            return told.replace("<", "\\u003c")
        files = ["page.css"] if name == "style" else []
        files += [f"{name}.js", f"{name}.html"]
        paths = (ASSETS / file for file in files)
        return next(path for path in paths if path.exists()).read_text()

    source = ASSETS.joinpath(template).read_text()
    return Page(re.sub(r"\{\{(\w+)\}\}", text, source))


def within(name, value, low, high):
    """The value as a reader would type it, if it is within the limits."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be >= {low:g} and <= {high:g}, got {value!r}")
    told = f"{value:.4g}" if value < 1_000 else f"{value:g}"
    return told.replace("e-0", "e-")


@cache
def substitute_epsilons():
    """The ε and δ of the trainings of the presets."""
    return {
        name: {
            "epsilon": round(
                accounting.epsilon(
                    noise_multiplier=one["sigma"],
                    sample_rate=one["q"],
                    steps=one["steps"],
                    delta=one["delta"],
                    adjacency="substitute",
                ),
                2,
            ),
            "delta": one["delta"],
        }
        for name, one in TRAININGS.items()
    }


def training_page(*, noise_multiplier=1.0, sample_rate=0.01, steps=1_000, delta=1e-5):
    """What an attacker finds, for the reader's own σ, q, T and δ.

    It shows both ε, the trade-off curves and a sentence, and the ε of
    batches drawn otherwise. The reader's browser composes DP-SGD.

    Args:
        noise_multiplier: 0.3 to 300; σ at the start.
        sample_rate: 1e-5 to 1; q at the start.
        steps: 1 to 100,000; T at the start.
        delta: 1e-10 to 0.01; δ at the start.

    Source: Doroshenko et al. (2022) on composing privacy losses;
    `accounting.epsilon` for the same numbers, certified.
    """
    starts = {
        "sigma": within("noise_multiplier", noise_multiplier, 0.3, 300),
        "q": within("sample_rate", sample_rate, 1e-5, 1),
        "steps": within("steps", steps, 1, 100_000),
        "delta": within("delta", delta, 1e-10, 0.01),
    }
    presets = filled("presets.html", **TRAININGS)
    about = {"checked": CHECKED, "within": WITHIN}
    return filled("explorer.html", starts=starts, presets=presets, **about)


def attacker_page(*, epsilon=1.0, delta=1e-5):
    """What an attacker finds at a false-positive rate, for an (ε, δ).

    It shows the bound for any mechanism with this ε and δ, under either
    adjacency, and that for a Gaussian mechanism.

    Args:
        epsilon: 0.01 to 100; ε at the start.
        delta: 1e-12 to 0.1; δ at the start.

    Source: Dong, Roth and Su (2022), Proposition 2.5 and Corollary 1.
    """
    starts = {"epsilon": within("epsilon", epsilon, 0.01, 100), "delta": within("delta", delta, 1e-12, 0.1)}
    presets = filled("presets.html", **substitute_epsilons())
    return filled("attacker.html", starts=starts, presets=presets)


def runs_page(*, epsilon=10.0, delta=1e-5, runs=2_500):
    """How many runs an audit needs, and what its runs can show.

    It shows the ceiling of a perfect attack and the bound of the rank test
    that an ideal attack on a Gaussian mechanism reaches in 80 % of audits,
    interpolated from the numbers that `run_planning` stored.

    Args:
        epsilon: 0.2 to 40; the attack's own ε at the start.
        delta: 1e-10 to 1e-3; δ at the start.
        runs: 50 to 500,000; the reader's runs at the start.

    Source: `estimators.max_certifiable_epsilon` and
    `estimators.runs_needed`.
    """
    starts = {
        "epsilon": within("epsilon", epsilon, 0.2, 40),
        "delta": within("delta", delta, 1e-10, 1e-3),
        "runs": within("runs", runs, 50, 500_000),
    }
    tables = json.loads((ASSETS / "run_planning.json").read_text())
    presets = filled("presets.html", **substitute_epsilons())
    return filled("runs.html", starts=starts, tables=tables, presets=presets)


def drifting_scores(result, *, delta, bins=40, alpha=0.05):
    """The scores of two worlds drift apart while models train.

    It shows histograms of an audit's scores in the two worlds, and the
    bound on ε, from step to step. It plays once when it is asked to, and
    has a slider for the step. If the reader's system asks for reduced
    motion, it shows the last step and has no button. The scores of each
    step are centred, and divided by their standard deviation within a
    world.

    Args:
        result: an audit with scores (run, step) at two steps or more, and
            with both worlds.
        delta: the δ at which ε is stated.
        bins: 8 to 80; the histograms' bars.
        alpha: as in `estimators.epsilon_lower_bound`; each bound holds for
            its own step.

    Source: *Beyond Membership*, Algorithm 1.
    """
    within("bins", bins, 8, 80)
    if result.score.dims != ("run", "step") or result.sizes["step"] < 2:
        raise ValueError(
            "result must have scores (run, step) at two steps or more, got "
            f"{dict(result.score.sizes)}: choose a repeat by isel(repeat=0)"
        )
    count = result.sizes["step"]
    places = np.linspace(0, count - 1, min(MOST_STEPS, count))
    chosen = result.isel(step=places.round().astype(int))
    panel = findings.panel({"audit": chosen}, delta=delta, alpha=alpha)
    [bounds] = panel["audited"]["audit"]
    if not all(bound.valid for bound in bounds):
        raise ValueError(f"result must have scores that allow a valid bound, got others: {bounds[0].note}")
    score, bit = chosen.score.values, chosen.bit.values
    standard = np.stack([standardised(one, bit) for one in score.T])
    low, high = np.quantile(standard, (NEAR, FAR))
    edges, kept = np.linspace(low, high, bins + 1), standard.clip(low, high)
    frames = [
        {
            "step": int(step),
            "bound": round(bound.epsilon, 3),
            "substitute": round(float(substitute), 3),
            "add_remove": round(float(add_remove), 3),
            "z": np.histogram(row[bit == 0], edges)[0].tolist(),
            "z_prime": np.histogram(row[bit == 1], edges)[0].tolist(),
        }
        for step, bound, substitute, add_remove, row in zip(
            panel["steps"], bounds, panel["substitute"], panel["add_remove"], kept, strict=True
        )
    ]
    runs = {"z": int((bit == 0).sum()), "z_prime": int((bit == 1).sum())}
    confidence = float(f"{100 * (1 - alpha):.4g}")
    return filled("drift.html", frames=frames, runs=runs, confidence=confidence)


def standardised(score, bit):
    """The scores of one step about the middle of the two worlds' means.

    They are divided by the standard deviation within a world.
    """
    with_z, others = score[bit == 0].astype(float), score[bit == 1]
    others = others.astype(float)
    middle = (with_z.mean() + others.mean()) / 2
    squares = with_z.var() * len(with_z) + others.var() * len(others)
    return (score - middle) / (np.sqrt(squares / len(score)) or 1.0)


def which_audit_page(results=ROOT / "results", pages=""):
    """Which audit fits whom: questions, and what kept audits showed.

    Of the audits that fit it names the one that showed most of ε.

    Args:
        results: the folder of kept audits.
        pages: what leads from the page to the notebooks, "" among them.
    """
    shown = what_audits_showed(Path(results))
    return filled("which_audit.html", shown=shown, pages=pages)


def what_audits_showed(results):
    """What kept audits showed at 95 % confidence, and ε_S, the truth."""
    folder = results / "paper/journal_final_model"
    many = audits.load(results / "paper/quickstart/S2.db")
    final = audits.load(folder / f"{TRAINING}.db")
    steps = audits.load(folder / f"{TRAINING}-steps.db")
    found = {"many": last(many), "final": last(final)}
    found["steps"] = estimators.step_to_training(
        estimators.epsilon_lower_bound(steps.score, steps.bit, delta=DELTA),
        sample_rate=steps.attrs["sample_rate"],
        steps=steps.attrs["steps"],
        delta=DELTA,
        adjacency="substitute",
    ).epsilon
    audited = {"many": many, "final": final, "steps": steps}
    for name, one in audited.items():
        names = ("noise_multiplier", "sample_rate", "steps")
        found[f"{name}_truth"] = accounting.epsilon(
            **{name: one.attrs[name] for name in names}, delta=DELTA, adjacency="substitute"
        )
    bridge = json.loads((ROOT / "studies/one_run/bridge.json").read_text())
    found["gradients"] = of_one_run(bridge["rows"], "gradient")
    found["records"] = of_one_run(bridge["rows"], "mislabeled")
    found["pairs_truth"] = bridge["of"]["substitute"]
    return {name: round(value, 2) for name, value in found.items()} | {
        "many_runs": many.sizes["run"],
        "final_runs": final.sizes["run"],
        "observations": steps.sizes["observation"],
        "pairs": PAIRS,
    }


def last(audit):
    """The bound at the last step."""
    score = audit.score.values.reshape(audit.sizes["run"], -1)[:, -1]
    bound = estimators.epsilon_lower_bound(score, audit.bit, delta=DELTA)
    return bound.epsilon


def of_one_run(rows, kind):
    """The mean bound of one training with many pairs."""
    wanted = {"kind": kind, "pairs": PAIRS, "models": 1}
    wanted |= {"method": "gdp", "score": "step_score"}
    [row] = [r for r in rows if wanted == {k: r[k] for k in wanted}]
    return sum(row["bounds"]) / len(row["bounds"])
