r"""One finished model, whose training nobody controls: its labels, beside labels that a proxy draws.

Each record has its own label y, with which the model was trained. A proxy draws another label y′ from its distribution
of labels given the record's features. The attacker sees the model and both labels, in the order of a fair coin. Its
guess is which of the two was trained with.

**Why this is an audit of pairs in one training.** Assume that, given the features and all else that the attacker knows
beside the model, the records' own labels are independent of each other, and that each is distributed as its proxy
label. Then y and y′ are exchangeable. Given that the two labels are a and c, the own label is a or c with probability ½
each, for each record independently. So nature tossed the coins that `one_run_dataset` tosses. z is the record with one
label and z′ with the other, and each coin substitutes a label. Records with y = y′ have no coin and are left out.
Leaving them out keeps the coins fair, since the condition y ≠ y′ is the same if y and y′ are exchanged.

**What a wrong proxy does.** Let p be the true distribution of one record's label and q the proxy's, with a distance in
total variation of τ. The own label is a with probability π = p(a)q(c)/(p(a)q(c) + p(c)q(a)). Such a coin is forced to
one side with probability :math:`|2π-1|`, and fair otherwise. Put a new fair coin in place of a forced one. The model
has nothing to do with it, so that any claim that holds with the own coins holds with these, too. The new coin differs
from the forced one in half of all cases, and a right guess is lost only then. Over the draw of both labels, coins
differ with probability

.. math:: \sum_{a<c} |p(a)q(c) - p(c)q(a)| / 2 \;\le\; τ (1 - s/2),

where s is the sum of the two smallest probabilities of q. The left side is convex in p − q, so that its maximum is
where p moves a mass of τ from one label to another. With two classes s = 1, and the share is τ/2. With more it is at
most τ. For several records, s is the smallest and τ the mean.

Coins differ independently of each other. So among N records more than k differ with a probability of at most that of a
binomial distribution with this share (Hoeffding, 1956, since k is at least its mean). `dpsub.bound` takes k right
guesses away, where more than k have a probability of alpha/10, and tests the rest at 9/10 of alpha, as guesses of fair
coins. Mistakes of the proxy may thus sit where the attacker finds them.

Source: Kalemaj et al. (2025), who show the attacker one of the two labels. To show both is to audit label substitution
as in Keinan et al. (2025); the derivation above is for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.audits.one_run import scored_pairs
from dpsub.trainers.slot import label_logits

ROUNDING = 1e-3  # of a row of probabilities, absolute


@dataclass(frozen=True, eq=False)
class ProxyLabels:
    """Own labels beside a proxy's, in the order of fair coins. `proxy_labels` makes it.

    Attributes:
        records: (m,) the records whose two labels differ.
        labels: (m, 2) the labels of z and of z′. One is the record's own.
        bits: (m,) int8: 0 where z has the record's own label, 1 where z′ has it. The attacker must not look at them.
        drawn: N, for how many records labels were drawn.
        classes: how many classes there are.
        turned: how many of N coins, as a share, may differ from fair coins by the tolerance; None without a
            tolerance.
        proxy, tolerance, seed: as given to `proxy_labels`.
    """

    records: NDArray[np.int64]
    labels: NDArray[np.int64]
    bits: NDArray[np.int8]
    drawn: int
    classes: int
    turned: float | None
    proxy: str
    tolerance: float | None
    seed: int

    def scores(self, logits: ArrayLike, *, reference: ArrayLike | None = None) -> xr.Dataset:
        """Score the finished model. `dpsub.bound` of the scores guesses the coins and bounds ε.

        Args:
            logits: (N, classes), the model's logits or log-probabilities of all records, in the order of the labels.
            reference: (N, classes), of another model, whose scores are subtracted: what both know says nothing of the
                audited training. Any model that did not see these labels will do, such as the proxy.

        Returns:
            A dataset as `one_run_dataset(…).scores` returns it: `score` (model, pair) with one model,
            logit(z) − logit(z′), and `bit` (model, pair). The attributes name the proxy and its tolerance.

        Raises:
            ValueError: if logits are not finite numbers (N, classes).

        >>> drawn = proxy_labels([0, 1] * 50, [[0.5, 0.5]] * 100, tolerance=0.0, seed=0)
        >>> memory = np.log([[0.9, 0.1], [0.1, 0.9]] * 50)  # of a model that has learnt each label by heart
        >>> from dpsub import bound
        >>> round(bound(drawn.scores(memory), delta=1e-5).epsilon, 2)
        4.72
        """
        score = self._scores("logits", logits)
        if reference is not None:
            score = score - self._scores("reference", reference)
        attributes = {
            "adjacency": "substitute",
            "drawn": self.drawn,
            "proxy": self.proxy,
            **({} if self.tolerance is None else {"tolerance": self.tolerance, "turned": self.turned}),
            "reference": int(reference is not None),
            "seed": self.seed,
        }
        return scored_pairs(score, self.bits, self.records, attributes)

    def _scores(self, name: str, values: ArrayLike) -> NDArray[np.float64]:
        """(m,): logit(z) − logit(z′)."""
        table = checks.array(name, values, shape=(self.drawn, self.classes))
        outputs = torch.from_numpy(table[self.records])[..., None]
        of_z, of_z_prime = (label_logits(outputs, torch.from_numpy(labels.copy()))[:, 0] for labels in self.labels.T)
        return (of_z - of_z_prime).numpy()


@checks.checked("seed", tolerance=partial(checks.real, at_least=0, at_most=1), proxy=checks.text)
def proxy_labels(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    tolerance: float | None = None,
    proxy: str = "proxy",
    seed: int,
) -> ProxyLabels:
    """Draw a proxy's label beside each record's own, to audit a finished model for what it leaks of labels.

    Nothing of the training is changed or repeated. In return, the bound rests on the proxy: each label must have been
    drawn as the proxy draws it, given the features and all else that the attacker knows, up to `tolerance`. A model
    that knows better than the proxy how labels depend on features is accused without having leaked any.

    Args:
        labels: (N,) the labels that the model was trained with, whole numbers from 0.
        probabilities: (N, classes), the proxy's distribution of labels given each record's features. The proxy must
            have been made without these labels, and without the audited model.
        tolerance: from 0 to 1; at most how far these distributions are from the true ones in total variation, on
            average over the records. The bound allows for it. None if nothing is known: then no bound is valid.
        proxy: what the proxy is called in a bound.
        seed: ≥ 0; of the proxy's labels and the coins.

    Returns:
        `ProxyLabels`, whose `scores(logits)` scores the model.

    Raises:
        ValueError: if labels or probabilities are not of these shapes and ranges, or the proxy draws all labels as
            they are.

    Source: Kalemaj et al. (2025), with both labels shown.

    >>> proxy_labels([0, 1, 1], [[0.0, 1.0], [0.5, 0.5], [0.0, 1.0]], seed=0).records
    array([0, 1])
    """
    table = checks.array("probabilities", probabilities, shape=("records", "classes"), at_least=0)
    total = table.sum(axis=1)
    if (abs(total - 1) > ROUNDING).any():
        raise ValueError(
            f"probabilities must add up to 1 for each record, got {table[int(abs(total - 1).argmax())].tolist()}"
        )
    own = checks.array("labels", labels, shape=(len(table),), kind=np.int64, at_least=0, at_most=table.shape[1] - 1)
    draws = stream(seed, "proxy")
    sums = np.cumsum(table / total[:, None], axis=1)[:, :-1]
    other = (draws.random(len(own))[:, None] >= sums).sum(axis=1)
    coins = draws.integers(0, 2, len(own), dtype=np.int8)
    [records] = np.nonzero(own != other)
    if not len(records):
        raise ValueError(
            "probabilities must leave a doubt about labels, got ones that drew each record's own: no label is left "
            "to guess"
        )
    both, bits = np.stack([own, other], axis=1)[records], coins[records]
    ordered = np.where(bits[:, None] == 0, both, both[:, ::-1])
    smallest = np.partition(table, 1, axis=1)[:, :2].sum(axis=1).min()
    turned = None if tolerance is None else float(tolerance * (1 - smallest / 2))
    for array in (records, ordered, bits):
        array.flags.writeable = False
    return ProxyLabels(records, ordered, bits, len(own), table.shape[1], turned, proxy, tolerance, seed)
