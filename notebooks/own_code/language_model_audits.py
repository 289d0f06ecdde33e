"""What fine-tuning on film reviews by LoRA says of labels and secrets.

    python -m own_code.language_model_audits ../results/language_models.csv

A small GPT-2 is trained on public reviews, and fine-tuned with DP-SGD on
private ones: their ratings, their whole texts, or their last words. One
record is a canary. A table that exists is continued.
"""

import sys
from functools import cache

import numpy as np

import dpsub
from dpsub import accounting, crafters, data, estimators, models
from dpsub.data import files
from own_code.kept_tables import continued
from own_code.language_models import (
    Along,
    Exposure,
    NextWord,
    WholeText,
    Words,
    adapted,
    gpt2,
    minus_log_p,
    trained,
)

DELTA, EPSILON = 1e-5, 8.0  # under substitution
RUNS, N_TRAIN, LENGTH, VOCABULARY = 200, 100, 16, 2_000
STEPS = {1.0: 4, 0.1: 40}  # by sample rate
RATE, RANK = 1.0, 4
MAX_GRAD_NORM = {"rating": 0.2, "text": 0.1, "last word": 0.3}
PAIRS, MODELS = 60, 8  # of audits by one run
RATINGS = ("bad", "good")
DIGITS = [
    *("zero", "one", "two", "three", "four"),
    *("five", "six", "seven", "eight", "nine"),
]
UNUSED = [f"<unused{i}>" for i in range(10)]
SECRET, OTHER = 7, 3  # of ten candidates
CELL = ("task", "canary", "sample_rate")
CELLS = (
    ("rating", "mislabeled", 1.0),
    ("text", "number", 1.0),
    ("last word", "number", 1.0),
    ("rating", "gradient", 1.0),
    ("rating", "another label", 1.0),
    ("rating", "mislabeled", 0.1),
    ("rating", "one run", 1.0),
    ("last word", "unused word", 1.0),
    ("last word", "random word", 1.0),
    ("text", "unused word", 1.0),
    ("text", "random word", 1.0),
    ("rating", "unused word", 1.0),
    ("rating", "gradient", 0.1),
)


def asked(text):
    """A review, as the model is asked to rate it."""
    return " ".join([*text.split()[-(LENGTH - 3) :], "it was"])


@cache
def reviews():
    """The vocabulary, and (texts, labels): private, public, for testing."""
    texts, labels = files.sentences("train")
    order = np.random.default_rng(0).permutation(len(texts))
    private, public = order[:N_TRAIN], order[N_TRAIN:]
    parts = [
        ([texts[i] for i in own], labels[own]) for own in (private, public)
    ]
    also = (
        *RATINGS,
        *("it", "was", "the", "code", "of", "door", "is"),
        *DIGITS,
        *UNUSED,
    )
    words = Words(parts[1][0], VOCABULARY, also)
    return words, *parts, files.sentences("dev")


@cache
def start(rates):
    """GPT-2 after the public texts and, if it rates, their ratings."""
    words, _, (texts, labels), _ = reviews()
    model = gpt2(len(words), LENGTH)
    rows = words.rows(texts, LENGTH)
    trained(WholeText(model), rows, np.zeros_like(labels), epochs=4)
    if rates:
        rows = words.rows([asked(text) for text in texts], LENGTH)
        trained(rating(model), rows, labels, epochs=4, rate=2e-3)
    return model.state_dict()


def rating(model):
    words = reviews()[0]
    candidates = [words.number[name] for name in RATINGS]
    return NextWord(model, candidates, logits_to_keep=1)


@cache
def setting(kind):
    """The task, and the bank: rank-4 LoRA on the attention."""
    words, private, _, test = reviews()
    rows, classes = [], 2
    for texts, labels in (private, test):
        if kind == "rating":
            x = words.rows([asked(text) for text in texts], LENGTH)
            rows += [x, labels]
        else:
            x = words.rows(texts, LENGTH)
            whole = kind == "text"
            rows += [x, 0 * labels] if whole else [x[:, :-1], x[:, -1]]
    model = gpt2(len(words), LENGTH)
    model.load_state_dict(start(kind == "rating"))
    adapted(model, rank=RANK)
    if kind == "rating":
        module = rating(model)
    elif kind == "text":
        module = WholeText(model)
    else:
        classes = len(words)
        module = NextWord(model, range(classes), logits_to_keep=1)
    x, y, x_test, y_test = rows
    task = data.from_arrays(
        x, y, x_test=x_test, y_test=y_test, num_classes=classes,
        name=f"SST-2, {kind}",
    )  # fmt: skip
    return task, models.from_module(module, task, loss=minus_log_p)


def secret_of(kind, canary):
    """A pair of worlds that differ in one word, and the observer."""
    words, (texts, _), _, _ = reviews()
    task = setting(kind)[0]
    draws = np.random.default_rng(1)
    text, candidates = {
        "number": ("the code of the door is", DIGITS),
        "unused word": (texts[0].rpartition(" ")[0], UNUSED),
        "random word": (
            texts[0].rpartition(" ")[0],
            draws.choice(words.words[50:-10], 10, replace=False),
        ),
    }[canary]
    numbers = [words.number[word] for word in candidates]
    if kind == "text":
        x = words.rows([f"{text} {word}" for word in candidates], LENGTH)
        worlds, seen = [(x[i], 0) for i in (SECRET, OTHER)], (x, SECRET)
    else:
        x = words.rows([text], LENGTH - 1)
        worlds = [(x[0], numbers[i]) for i in (SECRET, OTHER)]
        seen = (x, SECRET, numbers)
    pair = dpsub.CanaryPair(*worlds, 0, canary, task=task.fingerprint)
    return pair, Exposure(*seen)


def pair_of(kind, canary, spec):
    """The two worlds, and what is observed beside the score."""
    task, model = setting(kind)
    words = reviews()[0]
    if canary == "gradient":
        return crafters.gradient(task, model, spec, seed=0), []
    if canary == "mislabeled":
        return crafters.mislabeled(task, model, spec, seed=0), [Along()]
    if kind != "rating":
        pair, exposure = secret_of(kind, canary)
        return pair, [Along(), exposure]
    x, y = task.x_train[0], int(task.y_train[0])
    if canary == "unused word":
        x = words.rows([asked(UNUSED[0])], LENGTH)[0]
    about = {"scenario": canary, "task": task.fingerprint}
    return dpsub.CanaryPair((x, y), (x, 1 - y), 0, **about), [Along()]


def spec_of(kind, sample_rate=1.0):
    training = {"sample_rate": sample_rate, "steps": STEPS[sample_rate]}
    noise = accounting.noise_multiplier(
        target_epsilon=EPSILON,
        delta=DELTA,
        adjacency="substitute",
        **training,
    )
    clip = MAX_GRAD_NORM[kind]
    return dpsub.DPSGD(noise, clip, learning_rate=RATE / clip, **training)


def separation(score, bit):
    """The distance of two worlds' means, by their spread."""
    z, z_prime = (score[bit == world].astype(float) for world in (0, 1))
    spread = np.sqrt((z.var() + z_prime.var()) / 2)
    return round(float((z.mean() - z_prime.mean()) / spread), 3)


def measured(cell):
    """What an audit shows: a row."""
    kind, canary = cell["task"], cell["canary"]
    spec = spec_of(kind, cell["sample_rate"])
    if canary == "one run":
        return of_one_run(kind, spec)
    pair, metrics = pair_of(kind, canary, spec)
    metrics = [*metrics, "distance"]
    metrics += ["accuracy"] if kind == "rating" else []
    audited = dpsub.audit(
        *setting(kind), pair, spec, runs=RUNS, metrics=metrics,
        observe_every=spec.steps // 4, device="cpu", progress=False,
    )  # fmt: skip
    final, bit = audited.isel(step=[-1]), audited.bit.values
    row = {
        "trained": len(setting(kind)[0].y_train),
        "runs": RUNS,
        "ceiling": estimators.max_certifiable_epsilon(RUNS, delta=DELTA),
        "distance": float(audited.distance.mean()),
    }
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


def of_one_run(kind, spec):
    """Many mislabeled pairs in one training, and in several."""
    task, model = setting(kind)
    pairs = crafters.mislabeled_pairs(
        task, model, spec, pairs=PAIRS, seed=0
    )
    seen = dpsub.audit_one_run(
        task,
        model,
        pairs,
        spec,
        models=MODELS,
        device="cpu",
        progress=False,
    )
    final = seen.drop_vars("step_score")
    one = final.isel(model=[0])
    sure = one.score.copy(data=1.0 - 2.0 * one.bit.values)
    bounds = {
        "score": one,
        "steps": seen.isel(model=[0]),
        "pooled": final,
        "pooled_steps": seen,
        "ceiling": one.assign(score=sure),
    }
    row = {"trained": len(task.y_train), "runs": 1}
    row["score_apart"] = separation(
        final.score.values.ravel(), final.bit.values.ravel()
    )
    for name, scores in bounds.items():
        row[name] = dpsub.bound(scores, delta=DELTA).epsilon
    return [rounded(row)]


def rounded(row):
    return {
        name: round(float(value), 3) if isinstance(value, float) else value
        for name, value in row.items()
    }


COLUMNS = (
    "trained", "runs", "score", "along", "ceiling", "score_apart",
    "along_apart", "distance", "exposure", "exposure_without", "accuracy",
    "steps",
    "pooled",
    "pooled_steps",
)  # fmt: skip

if __name__ == "__main__":
    (path,) = sys.argv[1:]
    continued(
        path,
        CELL,
        CELLS,
        measured,
        columns=COLUMNS,
        about=f"{N_TRAIN} private reviews of SST-2, GPT-2 with LoRA, "
        f"substitute {EPSILON:g}; one core of a shared machine, processor "
        "seconds",
    )
