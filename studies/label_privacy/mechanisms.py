"""Mechanisms that protect labels alone, and attacks on them."""

from dataclasses import dataclass

import numpy as np

from dpsub import data

SURE = 50.0  # the evidence for a label that is known


@dataclass(frozen=True)
class RandomizedResponse:
    """ε-DP for each label: often kept, else any other (Warner, 1965)."""

    epsilon: float
    classes: int

    @property
    def kept(self):
        """The probability that a label is kept."""
        odds = np.exp(self.epsilon)
        return odds / (odds + self.classes - 1)

    def release(self, labels, rng):
        """(n,): each label as it is released."""
        other = labels + rng.integers(1, self.classes, len(labels))
        keeps = rng.random(len(labels)) < self.kept
        return np.where(keeps, labels, other % self.classes)

    def evidence(self, released):
        """(n, k): the log-likelihood of each label, but for a constant."""
        return self.epsilon * one_hot(released, self.classes)


@dataclass(frozen=True)
class Alibi:
    """ε-DP for each label: its one-hot code plus Laplace noise.

    Another label moves the code by 2 in the 1-norm, so the noise has the
    scale 2/ε (Malek et al., 2021).
    """

    epsilon: float
    classes: int

    def release(self, labels, rng):
        """(n, k): the noisy codes."""
        code = one_hot(labels, self.classes)
        return code + rng.laplace(scale=2 / self.epsilon, size=code.shape)

    def evidence(self, released):
        """(n, k): the log-likelihood of each label, but for a constant."""
        return (abs(released) - abs(released - 1)) * self.epsilon / 2


@dataclass(frozen=True)
class DrawnAnew:
    """The mistake: a mechanism whose noise is new in each round."""

    mechanism: RandomizedResponse | Alibi
    rounds: int

    def release(self, labels, rng):
        return [self.mechanism.release(labels, rng) for _ in range(self.rounds)]

    def evidence(self, released):
        """(rounds, n, k): the evidence of each draw."""
        return np.array([self.mechanism.evidence(one) for one in released])


def one_hot(labels, classes):
    return np.eye(classes)[labels]


def fit(x, evidence, rounds=50, strength=1.0):
    """Train a linear classifier on what was released of the labels: (k, d + 1) weights, with the bias as last column.

    It maximises the likelihood of the released labels: for randomised response this is the corrected loss of Patrini et
    al. (2017), for ALIBI the posterior with the model's output as prior. Each round takes the posterior of each label,
    and a step toward it.

    Args:
        x: (n, d) features.
        evidence: (n, k), or (rounds, n, k) if it changes.
        rounds: passes over the data, if it does not change.
        strength: of the penalty on the squared weights.
    """
    x = with_ones(x)
    curve = x.T @ x / 2 + strength * np.eye(x.shape[1])
    columns = np.ascontiguousarray(x.T)
    back = np.linalg.inv(curve).astype(np.float32)  # bounds the curvature
    told = np.swapaxes(np.asarray(evidence, np.float32), -1, -2)
    told = np.exp(told - told.max(-2, keepdims=True))
    weights = np.zeros((told.shape[-2], x.shape[1]), np.float32)
    for likelihood in told if told.ndim == 3 else [told] * rounds:
        output = weights @ columns
        guess = np.exp(output - output.max(0))
        guess /= guess.sum(0)
        posterior = guess * likelihood
        posterior /= posterior.sum(0)
        slope = (columns @ (posterior - guess).T).T
        slope -= np.float32(strength) * weights
        weights += slope @ back
    return weights


def with_ones(x):
    ones = np.ones((*x.shape[:-1], 1), np.float32)
    return np.concatenate([x, ones], axis=-1)


def outputs(weights, x):
    """(…, k): what a trained model says of inputs (…, d)."""
    return with_ones(x) @ weights.T


def trained(mechanism, x, y, seed):
    """The model that is trained on released labels."""
    rng = np.random.default_rng(seed)
    return fit(x, mechanism.evidence(mechanism.release(y, rng)))


def accuracy(weights, task):
    """The share of the test records that a model labels correctly."""
    return (outputs(weights, task.x_test).argmax(1) == task.y_test).mean()


def attacked(bit, seed, *, mechanism, x, y, pair, asked=None):
    """Release labels, z's or z′'s as the last; score the last label.

    Args:
        x, y: (n, d) features, and the n − 1 labels of the others.
        pair: the last record's label in z (bit 0) and in z′ (bit 1).
        asked: (d,) what the attacker asks the model that is trained.
            None: it sees the released label, and no model is trained.
    """
    labels = np.append(y, pair[bit])
    if asked is None:
        rng = np.random.default_rng(seed)
        evidence = mechanism.evidence(mechanism.release(labels, rng))
        told = evidence[..., -1, :]
    else:
        told = outputs(trained(mechanism, x, labels, seed), asked)
    return np.sum(told[..., pair[0]] - told[..., pair[1]])


def votes(x, y, queries, teachers, classes):
    """(T, k): the votes of teachers on disjoint parts of the records."""
    found = np.zeros((len(queries), classes))
    parts = zip(np.array_split(x, teachers), np.array_split(y, teachers), strict=True)
    for records, labels in parts:
        teacher = fit(records, SURE * one_hot(labels, classes))
        answers = outputs(teacher, queries).argmax(1)
        found += one_hot(answers, classes)
    return found


def noisy_votes(counts, sigma, seed):
    """(T, k): votes with Gaussian noise of standard deviation σ."""
    noise = np.random.default_rng(seed).normal(scale=sigma, size=counts.shape)
    return counts + noise


def student(noisy, queries):
    """The model that is trained on the winners of the noisy votes."""
    winners = one_hot(noisy.argmax(1), noisy.shape[1])
    return fit(queries, SURE * winners)


def attacked_votes(bit, seed, *, worlds, sigma, queries=None):
    """Add noise of σ votes to the votes with z (bit 0) or with z′ (bit 1), and score them.

    Args:
        worlds: (2, T, k) the votes in both worlds.
        queries: (T, d) what the student is trained on, and then asked. None: the attacker sees the noisy votes.
    """
    told = noisy_votes(worlds[bit], sigma, seed)
    if queries is not None:
        told = outputs(student(told, queries), queries)
    return np.sum((worlds[0] - worlds[1]) * told)


def digits_with_a_mark(n_train, seed, mark=4.0):
    """Digits whose last private record is blank, but for a mark, a category that nobody else has.

    The mark has a column of its own, and is as long as most digits.
    """
    task = data.digits(n_train=n_train, seed=seed)
    x = {part: np.pad(getattr(task, part), ((0, 0), (0, 1))) for part in ("x_train", "x_aux", "x_test")}
    x["x_train"][-1] = 0
    x["x_train"][-1, -1] = mark
    y = {part: getattr(task, part) for part in ("y_train", "y_aux", "y_test")}
    return data.from_arrays(**x, **y, num_classes=task.num_classes, name="digits and a mark")
