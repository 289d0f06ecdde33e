"""One fine-tuning with coins in its data, with all of its noise and with less: scores, bounds and their figures."""

from dataclasses import replace

import numpy as np
import pandas as pd

import dpsub
from dpsub import accounting, estimators, figures
from studies.own_training import fine_tuning
from studies.trainings import ON_A_CPU

CLAIMS = {
    "gdp": {"marker": "o", "label": '"gdp"'},
    "dp": {"marker": "o", "mfc": "white", "label": '"dp", assumes nothing'},
    "product": {"marker": "D", "mfc": "white", "label": '"product", independent guesses'},
}
NOISES = {"as stated": "noise as stated", "half": "half the noise", "hardly any": "hardly any noise"}
SCORES = {"labels": ("score", "score less the reference's"), "gradients": ("step_score", "score of all steps")}


def less_noise(noise_multiplier, hardly_any):
    """The noise multiplier that is stated, half of it, and hardly any."""
    return dict(zip(NOISES, (noise_multiplier, noise_multiplier / 2, hardly_any), strict=True))


def by_noise(private, reference, task, model, gradients, spec, noises, settings):
    """The scores of labels by Opacus's final models, and of gradients at every step, by kind of pair and noise."""
    seen = {}
    for noise, sigma in noises.items():
        head, _, _ = fine_tuning.fine_tune(private, 10, **settings | {"noise_multiplier": sigma})
        seen["labels", noise] = private.scores(head, reference=reference)
        less = replace(spec, noise_multiplier=sigma)
        how = {"metrics": ("accuracy",), "seed": settings["seed"]}
        seen["gradients", noise] = dpsub.audit_one_run(task, model, gradients, less, **how, **ON_A_CPU)
    return dict(sorted(seen.items(), key=lambda one: one[0][0] != "labels"))


def table_of(seen, guesses, **asked):
    """The bounds by claim; "product" of gradients alone, whose scores are independent, with all guessed."""
    rows = {
        key: {
            claim: dpsub.bound(audit, claim=claim, rule=guesses[-1] if claim == "product" else guesses, **asked).epsilon
            for claim in CLAIMS
        }
        for key, audit in seen.items()
    }
    table = pd.DataFrame(rows).T.rename_axis(["pairs of", "noise"])
    table.loc["labels", "product"] = np.nan
    return table


def of_ideals(count, epsilon, guesses, *, seed, delta, alpha):
    """The mean bound of audits of pairs as far apart as ε allows, which do not influence each other."""
    draws, mu, bounds = np.random.default_rng(seed), accounting.gdp_mu(epsilon, delta), []
    for _ in range(count):
        bits = draws.integers(0, 2, guesses[-1])
        scores = mu * (0.5 - bits) + draws.normal(size=bits.size)
        right = estimators.one_run_guesses(scores, bits, guesses=guesses)
        bounds.append(estimators.one_run_epsilon_lower_bound(*right, delta=delta, alpha=alpha).epsilon)
    return float(np.mean(bounds))


def rows(ax, table, substitute):
    """A row for each kind of pair and noise."""
    ax.axvline(substitute, **figures.looks("substitute"))
    for number, (claim, look) in enumerate(CLAIMS.items()):
        ax.plot(table[claim], range(len(table)), ls="none", color=figures.COLORS[number], **look)
    ax.set_yticks(range(len(table)), [f"{what}, {NOISES[noise]}" for what, noise in table.index])
    ax.invert_yaxis()
    ax.set_xlabel(r"lower bound on $\varepsilon$")
    ax.figure.legend(loc="outside upper center")


def histograms(axes, seen):
    """The scores of each kind of pair with the stated noise, by world."""
    for ax, (what, (score_name, label)) in zip(axes, SCORES.items(), strict=True):
        audit = seen[what, "as stated"].isel(model=0)
        score, bit = audit[score_name].values, audit.bit.values
        bins = np.linspace(score.min(), score.max(), 31)
        for world, (name, hatch) in enumerate((("z", None), ("z′", "////"))):
            look = {"color": figures.COLORS[world], "hatch": hatch, "label": f"world {name}"}
            ax.hist(score[bit == world], bins, histtype="step", **look)
        ax.set_xlabel(label)
        figures.tag(ax, what)
    axes[0].set_ylabel("pairs")
    axes[1].legend()
