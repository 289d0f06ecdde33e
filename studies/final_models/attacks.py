"""What attacks show of final models, by the papers' protocols and ours.

``python -m studies.final_models.attacks TABLES DATA ...`` trains the models of each audit and keeps what attacks show
of them in the folder TABLES. What is there is not made again.
"""

import io
import itertools
import json
import sys
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata

import dpsub
from dpsub import accounting, audits, distinguishers, estimators, findings, trainers
from studies.final_models.audits import (
    EXECUTIONS,
    LEARNING_RATES,
    USUAL,
    Cell,
    by_record,
    grid,
    made_for,
    record_rate,
    slower,
    trained,
)
from studies.final_models.distillation import distilled
from studies.trainings import DELTA

TWO = ", two labels"
LOSSES = ("ude", "ade", "fisher", "bhattacharyya")
MARGIN = 0.2  # α of the loss "ade", in the paper
MARGINS = (0.05, 0.1, 0.15, 0.25)  # of Table 1, beside 0.2
BOUNDS = (0.0, 1.0)  # to which both versions clamp, in standardised pixels
CELL_COLUMNS = ("data", "start", "canary", "max_grad_norm", "adjacency", "learning_rate", "steps", "n_train", "size")
BY_RECORD = ", η/n"  # marks data whose audits have the paper's η/n
MADE = ("device", "cpu_capability", "commit", "last_written", "wall_seconds", "task", "model", "noise_multiplier")
MADE += tuple(f"version_{name}" for name in ("python", "dpsub", "numpy", "torch"))
BOXED = ("first version", "held out")  # ways of black boxes
BEST_STEP = "first version, best step"  # of black boxes: the published code keeps the best of ten steps
SAYS = "probabilities"  # of each class: what a box says of a model
# How the kept audits' surrogates are trained. The published code takes 200 epochs, batches of 512 and a rate of 1e-4,
# which with so few records is 200 or 400 steps: on digits at η = 4 such surrogates give 30 % of the records the label
# that their model gives, and these 99 %.
SURROGATES = {
    "digits": {"epochs": 50, "batch_size": 50, "learning_rate": 0.01},
    "mnist": {"epochs": 10, "batch_size": 50, "learning_rate": 0.005},
    "cifar10": {"epochs": 10, "batch_size": 50, "learning_rate": 0.005},
}


class Way(NamedTuple):
    """A protocol, how samples are crafted, and how a bound is taken."""

    protocol: str
    version: int  # of the paper: 1 takes 10 steps at 0.05 from the canary, 2 takes 5 at 0.01 from zeros
    rule: str
    alpha: float  # the papers bound each of two rates at 5 %, which is 0.1


WAYS = {
    "first version": Way("in_sample", 1, "best", 0.1),
    "second version": Way("held_out", 2, "best", 0.1),
    "held out": Way("held_out", 1, "ranks", 0.05),
    "held out, second crafting": Way("held_out", 2, "ranks", 0.05),
    "folds": Way("folds", 1, "folds", 0.05),
}
QUICK_WAYS = tuple(way for way in WAYS if way != "folds")


def attack(name, pair, version, margin=MARGIN, rate=0.05):
    """The distinguisher of an attack: "canary", or a loss of a sample.

    A loss followed by TWO is that of z's label minus that of z′'s.
    """
    if name == "canary":
        return distinguishers.Canary(pair)
    loss = name.removesuffix(TWO)
    # The published code clamps from the first step on, here before it.
    how = {"start": (np.clip(pair.z.x, *BOUNDS), pair.z.y), "steps": 10, "learning_rate": rate}
    if version == 2:
        how = {"start": (np.zeros_like(pair.z.x), pair.z.y), "steps": 5, "learning_rate": 0.01}
    return distinguishers.AdversarialSamples(
        y_prime=None if loss == name else pair.z_prime.y, loss=loss, margin=margin, bounds=BOUNDS, **how
    )


def surrogates(cell, records, network, pair, part, **recipe):
    """(runs, parameters): for each model one that learned what a box says of that model for the records of D′.

    The recipe has arguments of `distilled`; without any it is that of SURROGATES.
    """
    known = records.x_train.copy()
    known[pair.slot] = pair.z.x
    said = trainers.answers_of(network, part.weights.values, known, says=SAYS)
    return distilled(network, said, known, seed=0, says=SAYS, **(recipe or SURROGATES[cell.data])).weights


def boxed(network, pair, part, learned, way, name):
    """Scores and bits: a sample crafted on surrogates, by a way."""
    bits, weights = part.bit.values, part.weights.values
    known, judged = slice(None), slice(None)
    if WAYS[way].protocol == "held_out":
        half = round(0.5 * len(bits))
        known, judged = slice(0, half), slice(half, None)
    sample = attack(name, pair, 1, rate=0.02).learn(network, learned[known], bits[known])
    return sample.scores(network, weights[judged]), bits[judged]


def best_step(network, pair, part, learned, name):
    """What `shown` says of the step of crafting on surrogates whose bound is highest on the judged models."""
    bits, weights, how = part.bit.values, part.weights.values, WAYS["first version"]
    sample = attack(name, pair, 1, rate=0.02).learn(network, learned, bits)
    steps = [replace(sample, x=x).scores(network, weights) for x in sample.trace["x"][1:]]
    return max((shown(scores, bits, how.rule, how.alpha) for scores in steps), key=lambda one: one["bound"])


def shown(scores, bits, rule, alpha):
    """The columns that say what scores show."""
    found = estimators.epsilon_lower_bound(scores, bits, delta=DELTA, rule=rule, alpha=alpha)
    about = {"separation": findings.d_prime(scores, bits), "judged": len(bits)}
    return {"bound": found.epsilon, "valid": found.valid} | about


def perfect(epsilon, *, models=256, draws=1000, seed=0):
    """(draws,): the first version's bounds by scores, learned from no model, that tell as much as ε allows."""
    rng, how = np.random.default_rng(seed), WAYS["first version"]
    bits = rng.integers(0, 2, (draws, models))
    scores = rng.normal(size=bits.shape) - accounting.gdp_mu(epsilon, DELTA) * bits
    return np.array([shown(*audit, how.rule, how.alpha)["bound"] for audit in zip(scores, bits, strict=True)])


def attempts(pair, ways, margins):
    """Each distinguisher with its way, and the columns that name them."""
    names = ["canary", *LOSSES]
    if pair.adjacency == "substitute" and pair.z.y != pair.z_prime.y:
        names += [f"{loss}{TWO}" for loss in LOSSES]
    for way in ways:
        for name in names:
            yield way, attack(name, pair, WAYS[way].version), {"attack": name}
        for margin in margins if WAYS[way].version == 1 else ():
            yield way, attack("ade", pair, 1, margin), {"attack": "ade", "margin": margin}


def evaluated(cell, models, *, size=256, ways=QUICK_WAYS, margins=(), boxes=0, recipe=None):
    """What each attack shows of a cell's final models: a row for each audit of `size` of them, way and attack.

    What the canary's scores of all models show by ranks is added as the way "all models". `margins` are further ones of
    "ade", as in Table 1, and `boxes` audits are attacked by a black box, too, whose surrogates are trained by a recipe.
    Held out, a row says by how much the score's AUC is ahead of the canary's.
    """
    records, network, pair = made_for(cell)
    rows = []
    for number in range(models.sizes["run"] // size):
        part = models.isel(run=slice(number * size, (number + 1) * size))
        usual = {"models": size, "audit": number, "box": "white"}
        usual |= {"attack": "canary", "margin": MARGIN, "way": "all models"}
        rows.append(usual | shown(part.score[:, -1], part.bit, "ranks", 0.05))
        for way, by, named in attempts(pair, ways, margins):
            how = WAYS[way]
            scores = dpsub.distinguish(part, network, by, protocol=how.protocol, progress=False)
            found = shown(scores.score, scores.bit, how.rule, how.alpha)
            if named["attack"] == "canary":
                own = scores.score.values
            if how.protocol == "held_out":
                ahead = ahead_by(scores.score.values, own, scores.bit.values)
                found |= dict(zip(("ahead", "ahead_low", "ahead_high"), ahead, strict=True))
            rows.append(usual | {"way": way} | named | found)
        if number >= boxes:
            continue
        learned = surrogates(cell, records, network, pair, part, **(recipe or {}))
        for way, name in itertools.product(BOXED, ("ude", "ade")):
            scores = boxed(network, pair, part, learned, way, name)
            named = {"attack": name, "box": "black", "way": way}
            rows.append(usual | named | shown(*scores, WAYS[way].rule, WAYS[way].alpha))
        for name in ("ude", "ade"):
            found = best_step(network, pair, part, learned, name)
            rows.append(usual | {"attack": name, "box": "black", "way": BEST_STEP} | found)
    return pd.DataFrame(rows)


def executed(cell, many, *, boxes=1, recipe=None, **options):
    """All rows of executions of a cell, which have one audit of all its models each, and these audits.

    Each draws records, start, canary and noise anew. `boxes` and `recipe` are of `tabled`, and options of `trained`.
    """
    parts, audited = [], []
    for number in range(many):
        one = cell._replace(seed=cell.seed + number)
        audited.append(trained(one, **options))
        rows = tabled(one, audited[-1], size=cell.runs, boxes=boxes, recipe=recipe)
        parts.append(rows.assign(audit=number))
    return pd.concat(parts, ignore_index=True), audited


def keep(rows, cell, audited, path):
    """Write what was found of a cell, and how the models of its audits were made."""
    about = {name: audited[0].attrs[name] for name in MADE}
    about["wall_seconds"] = sum(one.attrs["wall_seconds"] for one in audited)
    if "accuracy" in audited[0]:
        about["accuracy"] = float(np.mean([one.accuracy[:, -1] for one in audited]))
        about["ceiling"] = float(
            np.mean([accounting.gdp_epsilon(findings.every_step_mu(one), DELTA) for one in audited])
        )
    about["evaluated"] = f"{date.today()}, commit {audits.made_here('cpu')['commit']}"
    about["models"] = sum(one.sizes["run"] for one in audited)
    about["cell"] = cell._asdict()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    told = json.dumps(about, ensure_ascii=False)
    Path(path).write_text(f"# {told}\n{rows.round(5).to_csv(index=False)}", encoding="utf-8")


def kept(folder):
    """What `keep` wrote in a folder and its folder "large": all rows, and the tables by name.

    A table has one seed, or all executions of its cell. Audits at the paper's η/n are of data of their own, with
    BY_RECORD behind its name.
    """
    tables, about = [], {}
    for path in [*sorted(Path(folder).glob("*.csv")), *sorted(Path(folder).glob("large/*.csv"))]:
        first, _, table = path.read_text("utf-8").partition("\n")
        name = str(path.relative_to(folder).with_suffix(""))
        about[name] = json.loads(first.removeprefix("# "))
        own = about[name]["cell"]
        columns = {"theory": own["epsilon"]} | {name: own[name] for name in CELL_COLUMNS}
        if own["learning_rate"] == record_rate(Cell(**own)):
            columns["data"] += BY_RECORD
        rows = pd.read_csv(io.StringIO(table)).assign(cell=path.stem.removesuffix(f"-seed{own['seed']}"), **columns)
        rows["audit"] += own["seed"]
        tables.append(rows)
    return pd.concat(tables, ignore_index=True), about


def auc(scores, bits):
    """How often a model trained with z has a higher score than another, along the last axis; ties count one half."""
    own = bits == 0
    many = own.sum(-1)
    ranks = np.where(own, rankdata(scores, axis=-1), 0).sum(-1)
    return (ranks - many * (many + 1) / 2) / (many * (bits.shape[-1] - many))


def ahead_by(scores, others, bits, *, seed=0, draws=1000):
    """By how much one score's AUC exceeds another's on the same models, and the ends of a 95 % bootstrap interval."""
    bits = np.asarray(bits)
    drawn = np.random.default_rng(seed).integers(0, len(bits), (draws, len(bits)))
    resampled = auc(scores[drawn], bits[drawn])
    resampled -= auc(others[drawn], bits[drawn])
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(auc(scores, bits) - auc(others, bits)), low, high


def tabled(cell, models, *, boxes=0, **options):
    """All rows that the pages show of a cell, from its models; options are of `evaluated`.

    Folds, black boxes (of `boxes` audits, for Figure 4) and the margins of Table 1 are for the blank canary from the
    average start alone.
    """
    if cell == cell._replace(**USUAL) and cell.learning_rate in (LEARNING_RATES[cell.data], record_rate(cell)):
        ways = WAYS if cell.learning_rate == LEARNING_RATES[cell.data] else QUICK_WAYS
        options |= {"boxes": boxes, "ways": tuple(ways), "margins": MARGINS if cell.epsilon == 4 else ()}
    return evaluated(cell, models, **options)


def large(cell, **options):
    """The rows of audits of 2,048 of a cell's models, and what the canary shows in all of them; and their one audit."""
    models = trained(cell, **options)
    parts = [evaluated(cell, models, size=2048, ways=("second version", "held out", "held out, second crafting"))]
    if cell.runs > 2048:
        parts.append(evaluated(cell, models, size=cell.runs, ways=()))
    return pd.concat(parts, ignore_index=True), [models]


def wanted(name):
    """What is kept of a data set: the path of each table, how to find its rows, and the cell."""
    cells = grid(name)
    first, by_step = cells[0], {"digits": by_record(cells), "mnist": slower(cells, 0.5)}.get(name, [])
    for cell in cells + by_step:
        many = EXECUTIONS.get(name, 1) if name == "digits" or cell == first else 1
        yield f"{cell.name}.csv", partial(executed, many=many), cell._replace(runs=256)
    if name == "digits":
        most = [one for one in cells if one.epsilon == first.epsilon] + [by_step[0]._replace(runs=5120)]
        for cell in most:
            yield f"large/{cell.name}.csv", large, cell


if __name__ == "__main__":
    torch.set_num_threads(1)
    tables = Path(sys.argv[1])
    for path, rows_of, cell in itertools.chain.from_iterable(map(wanted, sys.argv[2:])):
        if not (tables / path).exists():
            with TemporaryDirectory() as models:
                rows, audited = rows_of(cell, folder=models, progress=False)
                keep(rows, cell, audited, tables / path)
            print(path, flush=True)
