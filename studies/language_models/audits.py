"""What fine-tuning on film reviews by LoRA says of labels and secrets.

    python -m studies.language_models.audits studies/language_models/audits.csv

A small GPT-2 is trained on public reviews, and fine-tuned with DP-SGD on private ones: their ratings, their whole
texts, or their last words. One record is a canary, or many in one run. A table that exists is continued.
"""

import sys
from functools import cache

import numpy as np

import dpsub
from dpsub import crafters, data, estimators, models
from dpsub.data import catalogue
from studies.kept import continued
from studies.language_models.models import Along, Exposure, NextWord, WholeText, Words, adapted, gpt2, minus_log_p
from studies.language_models.models import trained as pretrained
from studies.scores import separation
from studies.trainings import DELTA, ON_A_CPU, calibrated

EPSILON = 8.0  # under substitution
RUNS, LENGTH, VOCABULARY = 200, 16, 2_000
SMALL, LARGE, ONE_RUN = 100, 200, 1_000  # private reviews
SEEDS = (0, 1, 2)  # of large audits: each has reviews of its own
CUTS = {SMALL: [SMALL]}  # where the private reviews of each seed end
CUTS[LARGE] = CUTS[ONE_RUN] = [ONE_RUN * (seed + 1) for seed in SEEDS]
PAIRS, WHITEN = 200, 10  # of one run: pairs, iterations
TESTED = {SMALL: 872, LARGE: 200, ONE_RUN: 872}  # public reviews
OBSERVED = {SMALL: 4, LARGE: 1}  # how often, in a training
STEPS = {1.0: 4, 0.1: 40}  # by sample rate
RATE, RANK = 1.0, 4
MAX_GRAD_NORM = {"rating": 0.2, "text": 0.1, "last word": 0.3}
RATINGS = ("bad", "good")
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
UNUSED = [f"<unused{i}>" for i in range(10)]
SECRET, OTHER = 7, 3  # of ten candidates
CELL = ("task", "canary", "sample_rate", "trained", "seed")
CELLS = (
    ("rating", "mislabeled", 1.0, SMALL, 0),
    ("text", "number", 1.0, SMALL, 0),
    ("last word", "number", 1.0, SMALL, 0),
    ("rating", "gradient", 1.0, SMALL, 0),
    ("rating", "another label", 1.0, SMALL, 0),
    ("rating", "mislabeled", 0.1, SMALL, 0),
    ("last word", "unused word", 1.0, SMALL, 0),
    ("last word", "random word", 1.0, SMALL, 0),
    ("text", "unused word", 1.0, SMALL, 0),
    ("text", "random word", 1.0, SMALL, 0),
    ("rating", "unused word", 1.0, SMALL, 0),
    ("rating", "gradient", 0.1, SMALL, 0),
    *(("rating", "another label", 1.0, LARGE, seed) for seed in SEEDS),
    *(("last word", "number", 1.0, LARGE, seed) for seed in SEEDS),
    *(("rating", "gradient", 1.0, LARGE, seed) for seed in SEEDS),
    *(("rating", "one run", 1.0, ONE_RUN, seed) for seed in SEEDS),
)


def asked(text):
    """A review, as the model is asked to rate it."""
    return " ".join([*text.split()[-(LENGTH - 3) :], "it was"])


@cache
def reviews(trained):
    """The vocabulary, and (texts, labels): by seed, public, to test."""
    texts, labels = catalogue.sentences("train")
    order = np.random.default_rng(0).permutation(len(texts))
    *private, public = (([texts[i] for i in own], labels[own]) for own in np.split(order, CUTS[trained]))
    also = (*RATINGS, *("it", "was", "the", "code", "of", "door", "is"), *DIGITS, *UNUSED)
    words = Words(public[0], VOCABULARY, also)
    return words, private, public, catalogue.sentences("dev")


@cache
def start(trained, rates):
    """GPT-2 after the public texts and, if it rates, their ratings."""
    words, _, (texts, labels), _ = reviews(trained)
    model = gpt2(len(words), LENGTH)
    pretrained(WholeText(model), words.rows(texts, LENGTH), np.zeros_like(labels), epochs=4)
    if rates:
        rows = words.rows([asked(text) for text in texts], LENGTH)
        pretrained(rating(model, words), rows, labels, epochs=4, rate=2e-3)
    return model.state_dict()


def rating(model, words):
    return NextWord(model, [words.number[name] for name in RATINGS], logits_to_keep=1)


@cache
def setting(kind, trained, seed):
    """The task, and the bank: rank-4 LoRA on the attention."""
    words, private, _, test = reviews(trained)
    rows, classes = [], 2
    for (texts, labels), most in ((private[seed], trained), (test, TESTED[trained])):
        texts, labels = texts[:most], labels[:most]
        x = words.rows([asked(text) for text in texts] if kind == "rating" else texts, LENGTH)
        rows += {"rating": [x, labels], "text": [x, 0 * labels], "last word": [x[:, :-1], x[:, -1]]}[kind]
    model = gpt2(len(words), LENGTH)
    model.load_state_dict(start(trained, kind == "rating"))
    adapted(model, rank=RANK)
    if kind == "rating":
        module = rating(model, words)
    elif kind == "text":
        module = WholeText(model)
    else:
        classes = len(words)
        module = NextWord(model, range(classes), logits_to_keep=1)
    x, y, x_test, y_test = rows
    task = data.from_arrays(x, y, x_test=x_test, y_test=y_test, num_classes=classes, name=f"SST-2, {kind}")
    return task, models.from_module(module, task, loss=minus_log_p)


def secret_of(kind, canary, trained, seed):
    """A pair of worlds that differ in one word, and the observer."""
    words, private, *_ = reviews(trained)
    texts, task = private[seed][0], setting(kind, trained, seed)[0]
    draws = np.random.default_rng(1 + seed)
    text, candidates = {
        "number": ("the code of the door is", DIGITS),
        "unused word": (texts[0].rpartition(" ")[0], UNUSED),
        "random word": (texts[0].rpartition(" ")[0], draws.choice(words.words[50:-10], 10, replace=False)),
    }[canary]
    numbers = [words.number[word] for word in candidates]
    if kind == "text":
        x = words.rows([f"{text} {word}" for word in candidates], LENGTH)
        worlds, exposure = [(x[i], 0) for i in (SECRET, OTHER)], Exposure(x, SECRET)
    else:
        x = words.rows([text], LENGTH - 1)
        worlds, exposure = [(x[0], numbers[i]) for i in (SECRET, OTHER)], Exposure(x, SECRET, numbers)
    return dpsub.CanaryPair(*worlds, 0, canary, task=task.fingerprint), exposure


def pair_of(kind, canary, trained, seed, spec):
    """The two worlds, and what is observed beside the score."""
    task, model = setting(kind, trained, seed)
    if canary == "gradient":
        return crafters.gradient(task, model, spec, seed=seed), []
    if canary == "mislabeled":
        return crafters.mislabeled(task, model, spec, seed=seed), [Along()]
    if kind != "rating":
        pair, exposure = secret_of(kind, canary, trained, seed)
        return pair, [Along(), exposure]
    x, y = task.x_train[0], int(task.y_train[0])
    if canary == "unused word":
        x = reviews(trained)[0].rows([asked(UNUSED[seed])], LENGTH)[0]
    return dpsub.CanaryPair((x, y), (x, 1 - y), 0, canary, task=task.fingerprint), [Along()]


def spec_of(kind, sample_rate=1.0):
    clip = MAX_GRAD_NORM[kind]
    return calibrated(EPSILON, "substitute", clip, sample_rate, STEPS[sample_rate], RATE / clip)


def measured(cell):
    """What an audit shows: a row."""
    kind, canary, sample_rate, trained, seed = (cell[name] for name in CELL)
    spec = spec_of(kind, sample_rate)
    if canary == "one run":
        return of_one_run(kind, trained, seed, spec)
    task, model = setting(kind, trained, seed)
    pair, metrics = pair_of(kind, canary, trained, seed, spec)
    metrics = [*metrics, "distance", *(["accuracy"] if kind == "rating" else [])]
    how = {"observe_every": spec.steps // OBSERVED[trained], "metrics": metrics, "seed": seed}
    audited = dpsub.audit(task, model, pair, spec, runs=RUNS, **how, **ON_A_CPU)
    final, bit = audited.isel(step=[-1]), audited.bit.values
    row = {"runs": RUNS, "ceiling": estimators.max_certifiable_epsilon(RUNS, delta=DELTA)}
    row["distance"] = float(audited.distance.mean())
    for name in ("score", "along"):
        if name in audited:
            score = final[name]
            seen = final.assign(score=final.score.copy(data=score.values))
            row[name] = dpsub.bound(seen, delta=DELTA)[0].epsilon
            row[f"{name}_apart"] = separation(score.values[:, 0], bit)
    if "exposure" in audited:
        exposure = final.exposure.values[:, 0]
        row["exposure"] = float(exposure[bit == 0].mean())
        row["exposure_without"] = float(exposure[bit == 1].mean())
    if "accuracy" in audited:
        row["accuracy"] = float(final.accuracy.mean())
    return [rounded(row)]


def of_one_run(kind, trained, seed, spec):
    """Many mislabeled pairs in one training."""
    task, model = setting(kind, trained, seed)
    pairs = crafters.mislabeled_pairs(task, model, spec, pairs=PAIRS, seed=seed)
    how = {"whiten": WHITEN, "metrics": ["accuracy"]}
    seen = dpsub.audit_one_run(task, model, pairs, spec, seed=seed, **how, **ON_A_CPU)
    final = seen.drop_vars("step_score")
    sure = final.score.copy(data=1.0 - 2.0 * final.bit.values)
    row = {"runs": 1, "accuracy": float(final.accuracy.mean())}
    row["score_apart"] = separation(final.score.values.ravel(), final.bit.values.ravel())
    for name, scores in (("score", final), ("steps", seen), ("ceiling", final.assign(score=sure))):
        row[name] = dpsub.bound(scores, delta=DELTA).epsilon
    return [rounded(row)]


def rounded(row):
    return {name: round(float(value), 3) if isinstance(value, float) else value for name, value in row.items()}


COLUMNS = ("runs", "score", "along", "ceiling", "score_apart", "along_apart")
COLUMNS += ("distance", "exposure", "exposure_without", "accuracy", "steps")

if __name__ == "__main__":
    about = f"private reviews of SST-2, GPT-2 with LoRA, substitute {EPSILON:g}; one core of a shared machine, "
    continued(sys.argv[1], CELL, CELLS, measured, columns=COLUMNS, about=about + "processor seconds")
