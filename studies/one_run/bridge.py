"""One training of many pairs, or many trainings of one: what each shows."""

import sys
import time

import numpy as np
import pandas as pd
import torch

from dpsub import audit_one_run, crafters, data, figures, models
from dpsub.estimators import epsilon_lower_bound, one_run_epsilon_lower_bound, one_run_guesses
from studies.kept import continued, read_json
from studies.own_training import fine_tuning
from studies.scores import separation
from studies.trainings import DELTA, ON_A_CPU, calibrated

EPSILON = 8.0  # of substitution, which the noise is calibrated to
LAW = {"sample_rate": 1 / 8, "steps": 80}
RECORDS = 400
KINDS = {"gradient": crafters.gradient_pairs, "mislabeled": crafters.mislabeled_pairs}
# Pairs in a training: how many models are trained, and how often with other records in the slots. One gradient pair is
# like another.
SIZES = {
    "gradient": {1: (2048, 1), 10: (512, 1), 50: (128, 1), 200: (32, 1)},
    "mislabeled": {1: (1024, 3), 10: (512, 1), 50: (128, 1), 200: (32, 1)},
}
SCORES = ("step_score", "score")
SHARES = (0.05, 0.2, 1.0)  # of pairs that are guessed; they share alpha
FEWEST = 16  # trainings of one pair that a rank test takes
PAIRS = (1, 10, 50, 200)  # pairs in a training, as in SIZES
LOOKS = {
    pairs: {"color": color, "marker": marker, "ms": 4}
    for pairs, color, marker in zip(PAIRS, figures.COLORS, "osD^", strict=False)
}
NAMES = {"gradient": "gradient pairs", "mislabeled": "mislabeled pairs"}
SCORE_NAMES = {"step_score": "every step", "score": "final model"}


def bound_of_scores(scores, bits, claim="gdp", centre=0.0):
    """The lower bound on ε of an audit's scores (models, pairs).

    One pair in each training is judged as in `audit`, by ranks. Of several pairs the coins are guessed, all models'
    together, around the centre of `one_run_guesses`.
    """
    if scores.shape[1] == 1:
        return epsilon_lower_bound(scores[:, 0], bits[:, 0], delta=DELTA).epsilon
    shares = (1.0,) if claim == "product" else SHARES
    return bound_of_guesses(guesses_of(scores, bits, shares, centre), claim)


def guesses_of(scores, bits, shares=SHARES, centre=0.0):
    """Right guesses, guesses and pairs, with so many of them guessed."""
    guesses = sorted({max(1, round(one * scores.size)) for one in shares})
    return one_run_guesses(scores, bits, guesses=guesses, centre=centre)


def bound_of_guesses(found, claim="gdp"):
    """The lower bound on ε of guesses."""
    return one_run_epsilon_lower_bound(*found, delta=DELTA, claim=claim).epsilon


def ceiling(pairs, models):
    """The bound if the scores tell the worlds of every pair apart."""
    shuffled = np.random.default_rng(0).permutation(models * pairs)
    bits = shuffled.reshape(models, pairs) % 2
    return bound_of_scores(0.5 - bits, bits)


def rows_of(seen, kind, pairs, seconds):
    """A row for each score, method and number of trainings, with the bounds of up to 16 disjoint groups of these."""
    counts = [2**i for i in range(int(np.log2(seen.sizes["model"])) + 1) if pairs > 1 or 2**i >= FEWEST]
    rows = []
    for name in SCORES:
        centre = "median" if name == "score" and kind == "mislabeled" else 0.0
        common = {
            "kind": kind,
            "pairs": pairs,
            "score": name,
            "separation": round(separation(seen[name], seen.bit.values), 4),
            "accuracy": round(float(seen.accuracy.mean()), 5),
            "seconds": round(seconds, 5),
        }
        for claim in ("gdp", "product") if pairs > 1 and kind == "gradient" else ("gdp",):
            for count in counts:
                starts = range(0, count * min(seen.sizes["model"] // count, 16), count)
                groups = [seen.isel(model=slice(start, start + count)) for start in starts]
                bounds = [bound_of_scores(one[name].values, one.bit.values, claim, centre) for one in groups]
                rows.append(common | {"method": claim, "models": count, "bounds": np.round(bounds, 4).tolist()})
    return rows


def spec_of(law=LAW, learning_rate=0.5):
    """DP-SGD with the noise that gives records the ε of `EPSILON`."""
    return calibrated(EPSILON, "substitute", 1.0, learning_rate=learning_rate, **law)


def audited(kind, pairs, models_trained, seeds):
    """The rows of so many models with so many pairs, once for each seed: a choice of records."""
    task = fine_tuning.encoded(data.digits(n_train=RECORDS))
    model, spec = models.linear(task), spec_of()
    rows = []
    for seed in seeds:
        began = time.process_time()  # the machine may be shared
        made = KINDS[kind](task, model, spec, pairs=pairs, seed=seed)
        how = {"models": models_trained, "metrics": ("accuracy",), "seed": seed}
        seen = audit_one_run(task, model, made, spec, **how, **ON_A_CPU)
        rows += rows_of(seen, kind, pairs, (time.process_time() - began) / models_trained)
    return rows


def measured(cell):
    """The rows of a kind and number of pairs."""
    models_trained, times = SIZES[cell["kind"]][cell["pairs"]]
    return audited(cell["kind"], cell["pairs"], models_trained, range(times))


def make(path):
    """Complete the file of all bounds by kind and number of pairs."""
    of = {
        **LAW,
        "noise_multiplier": spec_of().noise_multiplier,
        "substitute": EPSILON,
        "delta": DELTA,
        "task": "digits, encoded",
        "records": RECORDS,
        "shares": SHARES,
        "seed": 0,
    }
    cells = ((kind, pairs) for kind in SIZES for pairs in SIZES[kind])
    continued(path, ("kind", "pairs"), cells, measured, about={"of": of})


def about():
    """The task and the training of a file that `make` made."""
    kept = read_json("one_run/bridge.json")
    return kept["of"] | kept["made"]


def table(path="one_run/bridge.json"):
    """The mean bounds in a file that `make` made, as `rows_table` says."""
    return rows_table(read_json(path)["rows"])


def rows_table(rows):
    """The mean, least and greatest bound of a study's rows, and how many there are, by all that tells them apart.

    Separation, accuracy and processor seconds a model are means over the choices of records.
    """
    long = pd.DataFrame(rows).explode("bounds").astype({"bounds": float})
    by = ["kind", "pairs", "score", "method", "models"]
    grouped = long.groupby(by, sort=False)
    found = grouped.bounds.agg(["mean", "min", "max", "count"])
    return found.join(grouped[["separation", "accuracy", "seconds"]].mean()).reset_index()


def enough(rows, kind, score="step_score"):
    """From how many trainings on one pair in each shows most; None if it never does.

    Then its mean bound exceeds that of every larger number of pairs that was measured with as many models.
    """
    rows = rows[(rows.kind == kind) & (rows.score == score)]
    wide = rows[rows.method == "gdp"].pivot(index="models", columns="pairs", values="mean")
    ahead = wide.index[wide[1] > wide.drop(columns=1).max(axis=1)]
    return int(ahead[0]) if len(ahead) else None


def as_many(rows, kind, pairs):
    """How many trainings of one pair show as much as one of so many."""
    rows = rows[(rows.kind == kind) & (rows.score == "step_score")]
    rows = rows[rows.method == "gdp"].set_index(["pairs", "models"])["mean"]
    found = rows[1][rows[1] >= rows[pairs, 1]]
    return int(found.index[0]) if len(found) else None


def live(kind, pairs, models_trained, seed):
    """The mean bound by "gdp" from so many models of one choice of records, at every step."""
    found = rows_table(audited(kind, pairs, models_trained, [seed]))
    found = found[(found.score == "step_score") & (found.method == "gdp")]
    return float(found.set_index("models")["mean"][models_trained])


def both(axes, rows, substitute):
    """`tightness` of both kinds side by side."""
    for ax, kind in zip(axes, KINDS, strict=True):
        tightness(ax, rows, kind, substitute)
    axes[0].set_ylabel(r"lower bound on $\varepsilon$")
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def tightness(ax, rows, kind, substitute):
    """Mean bounds of a kind of pairs by the number of trainings, a line for each m, beside the training's ε_S."""
    shown = rows[(rows.kind == kind) & (rows.score == "step_score")]
    for pairs in PAIRS:
        own = shown[(shown.pairs == pairs) & (shown.method == "gdp")]
        ax.plot(own.models, own["mean"], label=f"m = {pairs}", **LOOKS[pairs])
        ax.fill_between(own.models, own["min"], own["max"], color=LOOKS[pairs]["color"], alpha=0.15, lw=0)
    own = shown[shown.method == "product"]
    own = own[own.pairs == own.pairs.max()]
    if len(own):
        hollow = LOOKS[own.pairs.iloc[0]] | {"mfc": "white", "ls": ":"}
        ax.plot(own.models, own["mean"], label=f"m = {own.pairs.iloc[0]}, if independent", **hollow)
    for pairs in PAIRS[:: len(PAIRS) - 1]:
        own = shown[(shown.pairs == pairs) & (shown.method == "gdp")]
        highest = [ceiling(pairs, one) for one in own.models]
        label = "ceilings of m = 1 and m = 200" if pairs > 1 else None
        ax.plot(own.models, highest, **figures.looks("ceiling", marker=LOOKS[pairs]["marker"], ms=2, label=label))
    ax.axhline(substitute, **figures.looks("substitute"))
    ax.set_xscale("log", base=2)
    ticks = 4 ** np.arange(0, 6)
    ax.set_xticks(ticks, [f"{one:,}" for one in ticks])
    ax.set_ylim(-0.02 * substitute, 1.6 * substitute)
    ax.set_xlabel("models trained")
    figures.tag(ax, NAMES[kind])


def disturbance(ax, accuracy, rows):
    """Separation and accuracy by the number of pairs in a training."""
    styles = {"step_score": "-", "score": ":"}
    for kind, color, marker in zip(NAMES, figures.COLORS, "os", strict=False):
        own = rows[(rows.kind == kind) & (rows.method == "gdp")]
        own = own.drop_duplicates(["pairs", "score"])
        look = {"color": color, "marker": marker, "ms": 4}
        for score, style in styles.items():
            here = own[own.score == score]
            ax.plot(here.pairs, here.separation, ls=style, label=f"{NAMES[kind]}, {SCORE_NAMES[score]}", **look)
        accuracy.plot(here.pairs, 100 * here.accuracy, **look)
    for one in (ax, accuracy):
        one.set_xscale("log")
        one.set_xticks(PAIRS, [str(size) for size in PAIRS])
        one.minorticks_off()
        one.set_xlabel("pairs in a training, m")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("separation of the worlds")
    accuracy.set_ylabel("test accuracy, %")
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1])
