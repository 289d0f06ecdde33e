"""Randomised response, ALIBI, PATE and DP-SGD with one substitute ε: how accurate they are, and attacks on them."""

from dataclasses import dataclass
from functools import partial

import numpy as np

import dpsub
from dpsub import accounting, crafters, data, estimators, figures, models
from studies.label_privacy import mechanisms
from studies.trainings import calibrated, final_models

ON_LABELS = {"randomised response": mechanisms.RandomizedResponse, "ALIBI": mechanisms.Alibi}
NAMES = [*ON_LABELS, "PATE", "DP-SGD"]


@dataclass(frozen=True)
class Comparison:
    """One task for all mechanisms, whose last record has a mark; and what PATE and DP-SGD need for each ε."""

    task: data.Task
    specs: dict[float, dpsub.DPSGD]
    canary: dpsub.CanaryPair
    public: np.ndarray  # (T, d): what the teachers vote on
    others: np.ndarray  # (T, k): the votes without the marked record's teacher
    worlds: np.ndarray  # (2, T, k): all votes, with z and with z′
    in_votes: dict[float, float]  # the standard deviation of the noise
    seed: int

    @property
    def pair(self):
        """The last record's label in z and in z′."""
        return self.canary.z.y, self.canary.z_prime.y

    def of_labels(self, mechanism, repeats):
        """The accuracies of models that are trained on released labels."""
        x, y = self.task.x_train, self.task.y_train
        made = (mechanisms.trained(mechanism, x, y, self.seed + i) for i in range(repeats))
        return np.array([mechanisms.accuracy(one, self.task) for one in made])

    def of_votes(self, epsilon, repeats):
        """The accuracies of students."""
        noisy = (mechanisms.noisy_votes(self.worlds[0], self.in_votes[epsilon], self.seed + i) for i in range(repeats))
        return np.array([mechanisms.accuracy(mechanisms.student(one, self.public), self.task) for one in noisy])

    def by_steps(self, epsilon, runs, **asked):
        """An audit of final models of DP-SGD."""
        what = self.task, models.linear(self.task), self.canary, self.specs[epsilon]
        return final_models(*what, runs=runs, seed=self.seed, device="cpu", **asked)

    def accuracies(self, repeats):
        """For each mechanism and ε."""
        reached = {}
        for e in self.specs:
            for name, kind in ON_LABELS.items():
                reached[name, e] = self.of_labels(kind(e, self.task.num_classes), repeats)
            reached["PATE", e] = self.of_votes(e, repeats)
            reached["DP-SGD", e] = self.by_steps(e, repeats, metrics=("accuracy",)).accuracy.values.ravel()
        return reached

    def without_privacy(self):
        labels = mechanisms.one_hot(self.task.y_train, self.task.num_classes)
        return mechanisms.accuracy(mechanisms.fit(self.task.x_train, mechanisms.SURE * labels), self.task)

    def attacks(self, runs):
        """On what each mechanism releases, for each ε: the label, the votes, or all steps on the worst data set."""
        x, y, found = self.task.x_train, self.task.y_train, {}
        for number, (e, spec) in enumerate(self.specs.items()):
            seed = self.seed + number  # noise of its own
            for name, kind in ON_LABELS.items():
                options = {"mechanism": kind(e, self.task.num_classes), "x": x[-1:], "y": y[:0], "pair": self.pair}
                found[name, e] = audited(name, mechanisms.attacked, runs=runs, seed=seed, **options)
            found["PATE", e] = self.attack_on_votes(self.in_votes[e], runs=runs, seed=seed)
            found["DP-SGD", e] = dpsub.audit_worst_case(**spec.mechanism, runs=runs, adjacency="substitute", seed=seed)
        return found

    def attack_on_votes(self, sigma, *, runs, seed, **asked):
        return audited(
            "PATE", mechanisms.attacked_votes, runs=runs, seed=seed, worlds=self.worlds, sigma=sigma, **asked
        )

    def attacks_on_models(self, epsilon, runs, faulty):
        """On final models alone, asked about the marked record; and with ALIBI about the first digit."""
        x, y, k = self.task.x_train, self.task.y_train, self.task.num_classes
        asked = {"runs": runs, "seed": self.seed}
        marked = {"x": x, "y": y[:-1], "pair": self.pair, "asked": x[-1]}
        moved = {"x": np.roll(x, -1, axis=0), "y": y[1:], "pair": (y[0], (y[0] + 1) % k), "asked": x[0]}
        kinds = {name: kind(epsilon, k) for name, kind in ON_LABELS.items()}
        cases = {(name, "marked"): (kind, marked) for name, kind in kinds.items()}
        cases |= {("ALIBI", "ordinary"): (kinds["ALIBI"], moved), ("drawn anew", "marked"): (faulty, marked)}
        found = {
            names: audited(", ".join(names), mechanisms.attacked, mechanism=kind, **asked, **record)
            for names, (kind, record) in cases.items()
        }
        found["PATE", "student"] = self.attack_on_votes(self.in_votes[epsilon], **asked, queries=self.public)
        return found | {("DP-SGD", "marked"): self.by_steps(epsilon, runs)}

    def votes_turned(self):
        """How many records the first teacher has, and how many of its votes another label of the first turns."""
        teachers = int(self.others[0].sum())
        mine = len(np.array_split(self.task.x_train[:-1], teachers)[0])
        x, y, k = self.task.x_train[:mine], self.task.y_train[:mine].copy(), self.task.num_classes
        before = mechanisms.votes(x, y, self.public, 1, k)
        y[0] = (y[0] + 1) % k
        return mine, int(np.abs(before - mechanisms.votes(x, y, self.public, 1, k)).sum() / 2)


def of_digits(n_train, epsilons, *, delta, teachers, queries, steps, learning_rate, max_grad_norm, seed):
    """The comparison on digits; DP-SGD takes all records in each step."""
    task = mechanisms.digits_with_a_mark(n_train, seed)
    x, y, k = task.x_train, task.y_train, task.num_classes
    specs = {e: calibrated(e, "substitute", max_grad_norm, 1.0, steps, learning_rate, delta=delta) for e in epsilons}
    canary = crafters.mislabeled(task, models.linear(task), specs[epsilons[0]], seed=seed, target=n_train - 1)
    public = task.x_aux[:queries]
    others = mechanisms.votes(x[:-1], y[:-1], public, teachers - 1, k)
    labels = (canary.z.y, canary.z_prime.y)
    worlds = np.array([others + mechanisms.votes(x[-1:], [label], public, 1, k) for label in labels])
    in_votes = {e: np.sqrt(2 * queries) / accounting.gdp_mu(e, delta) for e in epsilons}
    return Comparison(task, specs, canary, public, others, worlds, in_votes, seed)


def audited(name, attack, *, runs, seed, **options):
    return dpsub.audit_training(
        partial(attack, **options), name=name, runs=runs, adjacency="substitute", progress=False, seed=seed
    )


def bounds_of(attacked, *, delta, alpha):
    """The bounds of the attacks on what is released: claims of (ε, δ)-DP for noise on labels, of μ-GDP otherwise."""
    bounds = {}
    for (name, e), one in attacked.items():
        how = {"claim": "dp" if name in ON_LABELS else "gdp"}
        if name == "randomised response":
            how["rule"] = e / 2  # of scores ε, 0 and −ε
        [bounds[name, e]] = dpsub.bound(one, delta=delta, alpha=alpha, **how)
    return bounds


def accuracy_and_bounds(axes, reached, bounds, *, without_privacy, runs, delta, alpha):
    """Against ε: left, the test accuracy of each mechanism; right, the share of ε that an attack on it proves."""
    epsilons = sorted({e for _, e in reached})
    left, right = axes
    for name, color, mark in zip(NAMES, figures.COLORS, "os^D", strict=False):
        look = {"color": color, "marker": mark, "label": name, "ms": 4}
        of_name = np.array([reached[name, e] for e in epsilons])
        left.errorbar(epsilons, of_name.mean(axis=1), of_name.std(axis=1, ddof=1), **look)
        right.plot(epsilons, [bounds[name, e].epsilon / e for e in epsilons], **look, linestyle="none")
    left.axhline(without_privacy, color="0.5", ls=":", label="no privacy")
    right.axhline(1, **figures.looks("claimed"))
    most = estimators.max_certifiable_epsilon(runs, delta=delta, claim="dp", alpha=alpha)
    right.plot(epsilons, most / np.array(epsilons), **figures.looks("ceiling"))
    right.set_ylim(0, 1.2)
    for ax, label in ((left, "test accuracy"), (right, "bound / claimed ε")):
        ax.set_xscale("log")
        ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons], minor=False)
        ax.minorticks_off()
        ax.set_xlabel("claimed substitute ε")
        ax.set_ylabel(label)
    handles = {h.get_label(): h for ax in (right, left) for h in ax.get_legend_handles_labels()[0]}
    left.figure.legend(handles.values(), handles, loc="outside upper center", ncols=4)
