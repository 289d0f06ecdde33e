"""Audits of finished models by labels of a proxy.

``python -m studies.final_models.finished_models FILE`` counts how often their bounds are wrong, and audits models of
SST-2, whose features `DPSUB_DATA` has to hold.
"""

import sys
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax
from torch import nn
from torch.utils.data import TensorDataset

import dpsub
from dpsub import data, figures
from dpsub.opacus import privacy_statement
from studies.kept import remembered
from studies.own_training import fine_tuning
from studies.trainings import DELTA

YES = {"even": 0.7, "odd": 0.3}  # how often such a digit's writer says yes
SST2 = "features/sst2-all-minilm-l6-v2.npz"
AUDITS, RECORDS = 400, 1000
# How often labels are 1, how often the proxy says so, and the ε of the randomised response that the model releases.
CASES = {
    "exact, nothing leaks": (0.5, 0.5, 0.0),
    "exact, a leak": (0.5, 0.5, 2.0),
    "wrong, nothing leaks": (0.6, 0.5, 0.0),
    "wrong, a leak": (0.6, 0.5, 2.0),
}


def answers(digits, seed):
    """The true distribution (N, 2) of each answer, and answers drawn."""
    yes = np.where(digits % 2 == 0, YES["even"], YES["odd"])
    drawn = np.random.default_rng(seed).random(len(yes)) < yes
    return np.column_stack([1 - yes, yes]), drawn.astype(np.int64)


def fitted(x, y, *, hidden=32, epochs=40, decay=1.0, seed=0):
    """A network trained without noise. By default it is held back from learning records by heart."""
    torch.manual_seed(seed)
    x, y = torch.tensor(x), torch.tensor(y)
    net = nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, int(y.max()) + 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=decay)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


@torch.no_grad()
def logits(net, x):
    return net(torch.tensor(x)).numpy().astype(float)


def proxy_of(x, y, held_out_x, held_out_y, *, seed=0):
    """A network as a proxy, calibrated on held-out records: a function from features to probabilities."""
    net = fitted(x, y, seed=seed)
    outputs, own = logits(net, held_out_x), np.arange(len(held_out_y))

    def loss(temperature):
        scaled = log_softmax(outputs / temperature, axis=1)
        return -scaled[own, held_out_y].mean()

    best = min(np.geomspace(0.2, 20, 60), key=loss)
    return lambda records: np.exp(log_softmax(logits(net, records) / best, axis=1))


def private(x, y, *, seed, **settings):
    """A linear head trained by Opacus with these settings of `fine_tune`, and the ε of its labels."""
    records = TensorDataset(torch.tensor(x), torch.tensor(y))
    head, engine, loader = fine_tuning.fine_tune(records, int(y.max()) + 1, seed=seed, **settings)
    statement = privacy_statement(engine, delta=DELTA, data_loader=loader)
    return head, statement.substitute


def three_models(x, y, others, of_others, *, seed, **settings):
    """A model of records that learns them by heart, one with DP-SGD, and one of other records; and the second's ε."""
    head, stated = private(x, y, seed=seed, **settings)
    models = {
        "no noise": fitted(x, y, hidden=256, epochs=300, decay=0.0, seed=seed),
        "DP-SGD": head,
        "other records": fitted(others, of_others, seed=seed),
    }
    return models, stated


def calibration_error(probabilities, labels, bins=5):
    """How far frequencies of label 1 are from what was said, on average over bins of equal numbers."""
    order = np.argsort(probabilities[:, 1], kind="stable")
    said, came = probabilities[order, 1], labels[order]
    parts = np.array_split(np.arange(len(said)), bins)
    apart = [abs(said[part].mean() - came[part].mean()) for part in parts]
    return float(np.average(apart, weights=[len(part) for part in parts]))


def doubt(probabilities, labels):
    """1 − the mean probability of the labels that came.

    On average this is at least the distance between the proxy and the truth in total variation, whatever the truth is.
    """
    return float(1 - probabilities[np.arange(len(labels)), labels].mean())


def audited(models, x, y, probabilities, *, tolerance, proxy, seed=0):
    """The bound of each model. A fifth of the labels is guessed, and all; the proxy is the reference."""
    drawn = dpsub.proxy_labels(y, probabilities, tolerance=tolerance, proxy=proxy, seed=seed)
    reference = np.log(np.maximum(probabilities, 1e-12))
    pairs = len(drawn.bits)
    return {
        name: dpsub.bound(
            drawn.scores(logits(net, x), reference=reference), delta=DELTA, claim="dp", rule=[max(pairs // 5, 1), pairs]
        )
        for name, net in models.items()
    }


class Survey(NamedTuple):
    """Writers of digits and their private answers, three finished models, and three proxies for nature."""

    x: np.ndarray
    y: np.ndarray
    models: dict
    stated: float  # ε of the answers, of the model with DP-SGD
    proxies: dict
    distances: dict  # of the proxies to nature, in total variation
    errors: dict  # of the proxies' calibration, on held-out records
    sizes: dict  # how many other persons the models and the proxies have

    def audited(self, proxy, tolerance=0.0, *, seed=0):
        """The bound of each model."""
        how = {"tolerance": tolerance, "proxy": proxy, "seed": seed}
        return audited(self.models, self.x, self.y, self.proxies[proxy], **how)


def survey(n_train, *, seed=0, **settings):
    """A survey of so many persons; `settings` are those of `private`."""
    task = data.digits(n_train=n_train, seed=seed)
    x, (exact, y) = task.x_train, answers(task.y_train, seed)
    _, y_aux = answers(task.y_aux, seed + 1)
    exact_test, y_test = answers(task.y_test, seed + 2)
    others, of_others = np.concatenate([task.x_aux, task.x_test]), np.concatenate([y_aux, y_test])
    models, stated = three_models(x, y, others, of_others, seed=seed, **settings)
    net = proxy_of(task.x_aux, y_aux, task.x_test, y_test, seed=seed)
    proxies = {"exact": exact, "trained": net(x), "constant": np.full_like(exact, 0.5)}
    held_out = {"exact": exact_test, "trained": net(task.x_test), "constant": np.full_like(exact_test, 0.5)}
    distances = {proxy: float(abs(said - exact)[:, 1].mean()) for proxy, said in proxies.items()}
    errors = {proxy: calibration_error(said, y_test) for proxy, said in held_out.items()}
    sizes = {"others": len(of_others), "trained": len(y_aux), "calibrated": len(y_test)}
    return Survey(x, y, models, stated, proxies, distances, errors, sizes)


def by_proxy(axes, bounds, stated):
    """The bounds of each model by proxy, without its distance as tolerance and with it."""
    proxies = list(dict.fromkeys(proxy for proxy, _ in bounds))
    for ax, given in zip(axes, (False, True), strict=True):
        for place, name in enumerate(bounds[proxies[0], False]):
            look = {"marker": "o^s"[place], "color": figures.COLORS[place], "ls": "none", "label": name}
            found = [bounds[proxy, given][name].epsilon for proxy in proxies]
            ax.plot(found, np.arange(len(proxies)) + 0.2 * (place - 1), **look)
        ax.axvline(stated, color="black", ls="--", lw=1, label="$ε_S$ of DP-SGD")
        ax.set_xlim(-0.2, stated + 0.4)
        ax.set_xlabel(r"lower bound on $\varepsilon$")
        figures.tag(ax, "its distance allowed for" if given else "taken for exact")
    axes[0].set_yticks(range(len(proxies)), proxies)
    axes[0].set_ylabel("proxy")
    axes[0].invert_yaxis()
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def by_tolerance(ax, found, distance):
    """The bound of each model by the tolerance, and the true distance."""
    for place, name in enumerate(next(iter(found.values()))):
        look = {"marker": "o^s"[place], "color": figures.COLORS[place], "label": name}
        ax.plot(list(found), [each[name].epsilon for each in found.values()], **look)
    ax.axvline(distance, color="0.4", ls=":", label="true distance")
    ax.set_xlabel("tolerance τ")
    ax.set_ylabel(r"lower bound on $\varepsilon$")
    ax.legend()


def of_natural_labels(task, *, seed=0, **settings):
    """Audits of a task whose labels are nearly determined by features; auxiliary records train and calibrate the proxy.

    A row for each model: its true ε, and the bounds with no tolerance and with the doubt of the proxy on the test
    records. `settings` are those of `private`.
    """
    half = len(task.x_aux) // 2
    proxy = proxy_of(task.x_aux[:half], task.y_aux[:half], task.x_aux[half:], task.y_aux[half:], seed=seed)
    others = np.concatenate([task.x_aux, task.x_test])
    of_others = np.concatenate([task.y_aux, task.y_test])
    models, stated = three_models(task.x_train, task.y_train, others, of_others, seed=seed, **settings)
    truths = {"no noise": np.inf, "DP-SGD": stated, "other records": 0.0}
    said = proxy(task.x_train)
    tolerance = doubt(proxy(task.x_test), task.y_test)
    bounds = {
        tau: audited(models, task.x_train, task.y_train, said, tolerance=tau, proxy="trained", seed=seed)
        for tau in (0.0, tolerance)
    }
    return [
        {"task": task.name, "model": name, "epsilon": None if np.isinf(truth) else truth}
        | {of: bounds[0.0][name].details[of] for of in ("pairs", "correct", "guesses")}
        | {"taken as exact": bounds[0.0][name].epsilon, "doubt": tolerance}
        | {"with its doubt": bounds[tolerance][name].epsilon}
        for name, truth in truths.items()
    ]


def simulated(case, tolerance, seed):
    """The bound of one simulated audit, by claims "dp", of a model that releases each label by randomised response.

    The attacker adds what it knows: how often labels are 1. A quarter of the labels is guessed, and all.
    """
    truth, said, epsilon = CASES[case]
    draws = np.random.default_rng([list(CASES).index(case), seed])
    labels = (draws.random(RECORDS) < truth).astype(np.int64)
    kept = draws.random(RECORDS) < 1 / (1 + np.exp(-epsilon))
    outputs = epsilon * np.eye(2)[np.where(kept, labels, 1 - labels)]
    outputs[:, 1] += np.log(truth / (1 - truth))
    outputs += 1e-9 * draws.random(outputs.shape)
    drawn = dpsub.proxy_labels(labels, np.tile([1 - said, said], (RECORDS, 1)), tolerance=tolerance, seed=seed)
    every = len(drawn.bits)
    return dpsub.bound(drawn.scores(outputs), delta=DELTA, claim="dp", rule=[every // 4, every]).epsilon


def of_cases(audits=AUDITS):
    """How often the bound exceeds the truth, and its mean: a row for each case and tolerance."""
    rows = []
    for case, (truth, said, epsilon) in CASES.items():
        off_by = round(abs(truth - said), 9)
        for tolerance in sorted({0.0, off_by}):
            bounds = np.array([simulated(case, tolerance, seed) for seed in range(audits)])
            row = {"case": case, "epsilon": epsilon, "off by": off_by, "tolerance": tolerance, "audits": audits}
            rows.append(row | {"wrong": int((bounds > epsilon).sum()), "mean": float(bounds.mean())})
    return rows


def of_text():
    """Audits of three models of sentences."""
    task = data.load_features(SST2, n_train=2000, n_aux=2000, name="SST-2")
    return of_natural_labels(task, noise_multiplier=1.3, batch_size=128, epochs=10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    remembered(sys.argv[1], "simulated", of_cases)
    remembered(sys.argv[1], "SST-2", of_text)
