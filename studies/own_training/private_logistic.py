"""Logistic regression with output perturbation, in NumPy alone."""

import numpy as np


class PrivateLogisticRegression:
    """ε-DP under substitution, for rows of norm at most 1.

    It minimises the mean logistic loss plus λ/2 ‖w‖² and adds noise to
    the minimum (Chaudhuri, Monteleoni and Sarwate, 2011, Algorithm 1).
    """

    def __init__(self, epsilon, strength, seed):
        self.epsilon = epsilon  # ε
        self.strength = strength  # λ, of the regularisation
        self.seed = seed  # of the noise

    def fit(self, x, y):
        """Fit rows x (n, d) and labels y (n,) of −1 and 1."""
        if np.linalg.norm(x, axis=1).max() > 1 + 1e-9:
            raise ValueError("rows must have a norm of at most 1")
        self.solution_ = minimum(x * y[:, None], self.strength)
        n, d = x.shape
        rng = np.random.default_rng(self.seed)
        direction = rng.normal(size=d)
        direction /= np.linalg.norm(direction)
        length = rng.gamma(d, self.sensitivity(n) / self.epsilon)
        self.coef_ = self.solution_ + length * direction
        return self

    def sensitivity(self, n):
        """How far one substituted row moves the minimum at most."""
        return 2 / (n * self.strength)

    def predict_proba(self, x):
        """(n, 2): the probabilities of −1 and of 1."""
        positive = 1 / (1 + np.exp(-x @ self.coef_))
        return np.column_stack([1 - positive, positive])


class HalfTheNoise(PrivateLogisticRegression):
    """The same, with the sensitivity to a changed label alone."""

    def sensitivity(self, n):
        return 1 / (n * self.strength)


def minimum(v, strength, tolerance=1e-10):
    """The w that minimises mean log(1 + exp(−v·w)) + λ/2 ‖w‖².

    Newton's method, until the gradient's norm shows that w is within
    `tolerance` of the minimum.
    """
    w = np.zeros(v.shape[1])
    for _ in range(100):
        missed = 1 / (1 + np.exp(v @ w))
        slope = strength * w - missed @ v / len(v)
        if np.linalg.norm(slope) <= strength * tolerance:
            return w
        curve = (v * (missed * (1 - missed))[:, None]).T @ v / len(v)
        curve += strength * np.eye(len(w))
        w = w - np.linalg.solve(curve, slope)
    raise RuntimeError("Newton's method did not converge")


def minima(x, y, pair, strength):
    """(2, d): the minima without noise, with z and with z′ as last row."""
    others = x * y[:, None]
    return np.array(
        [
            minimum(np.vstack([others, label * row]), strength)
            for row, label in pair
        ]
    )


def attacked(bit, seed, *, make, x, y, pair, solutions):
    """Train with z (bit 0) or z′ (bit 1) as the last row; score it.

    Args:
        make: from a seed to a model.
        x, y: the other records.
        pair: z and z′, each a row and its label.
        solutions: the minima without noise, with z and with z′.
    """
    row, label = pair[bit]
    model = make(seed=seed).fit(np.vstack([x, row]), np.append(y, label))
    to_z, to_z_prime = np.linalg.norm(model.coef_ - solutions, axis=1)
    return to_z_prime - to_z
