"""A dataset for one's own training loop, in which fair coins exchange records, and the scores of what it trained."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.random_streams import stream
from dpsub.audits.one_run import scored_pairs
from dpsub.trainers.slot import label_logits

AT_ONCE = 256  # records
OF_TUPLES = (0, 1)  # where a tuple has x and y


class OneRunDataset(Dataset[Any]):
    """A dataset of records, in which each slot of the pairs holds z or z′. `one_run_dataset` makes it.

    Attributes:
        pairs: what fills the slots.
        bits: (m,) int8, read-only: 0 where z is in the slot, 1 where z′ is. Training must not look at them.
        seed: of the coins.
        outside: the records outside the pairs, which do not depend on the coins: what to train a reference on.
    """

    def __init__(self, dataset: Any, pairs: Pairs, seed: int, keys: tuple[Any, Any]) -> None:
        self._dataset, self._keys, self.pairs, self.seed = dataset, keys, pairs, seed
        bits = stream(seed, "one_run").integers(0, 2, len(pairs), dtype=np.int8)
        bits.flags.writeable = False
        self.bits: NDArray[np.int8] = bits
        self._worlds: Any = (pairs.z, pairs.y), (pairs.z_prime, pairs.y_prime)
        self._pair_of = {int(slot): i for i, slot in enumerate(pairs.slots)}

    @property
    def outside(self) -> Subset[Any]:
        return Subset(self._dataset, [i for i in range(len(self)) if i not in self._pair_of])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        at = range(len(self))[operator.index(index)]
        i = self._pair_of.get(at)
        return self._dataset[at] if i is None else self._filled(i, int(self.bits[i]))

    def _filled(self, i: int, bit: int) -> Any:
        """The record in the slot of pair i, with the x and y of z (bit 0) or z′ (bit 1)."""
        record, (x, y), (of_x, of_y) = self._dataset[int(self.pairs.slots[i])], self._worlds[bit], self._keys
        new = {of_x: _like(record[of_x], x[i]), of_y: _like(record[of_y], y[i])}
        return {**record, **new} if isinstance(record, Mapping) else (new[of_x], new[of_y])

    def scores(self, module: nn.Module, *, reference: nn.Module | None = None) -> xr.Dataset:
        """Score the model that was trained on this dataset. `dpsub.bound` of the scores guesses the coins and bounds ε.

        Args:
            module: takes a batch of records x, and returns logits (records, classes), or an object with them as
                `logits`. For records that are dicts it is called as `module(**entries)`, with all entries but the
                label. It is put in evaluation mode and back. Its parameters' device is used.
            reference: a model whose scores are subtracted: a clear record has a high score whatever its coin, so that
                scores without a reference show less. The bound is valid only if it did not see the coins. Train it on
                `outside`, or on public records; it may be trained without noise, and is not released.

        Returns:
            A dataset as `audit_one_run` returns: `score` (model, pair) float32 with one model, logit(z) − logit(z′),
            where logit is log p/(1 − p) for the probability p of the record's label; and `bit` (model, pair) int8. The
            attribute `reference` is 1 if a reference's scores were subtracted.

        Raises:
            ValueError: if both models are the same.
            IndexError: if a model returns no logits for the labels of the pairs.

        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from dpsub import Pairs, bound, one_run_dataset
        >>> plain = TensorDataset(torch.zeros(90, 40), torch.zeros(90, dtype=torch.int64))
        >>> x, own, other = torch.eye(40), torch.zeros(40), torch.ones(40)
        >>> private = one_run_dataset(plain, Pairs(range(40), x, x, own, other), seed=0)
        >>> model, reference = torch.nn.Linear(40, 2), torch.nn.Linear(40, 2)  # trained on private, private.outside
        >>> bound(private.scores(model, reference=reference), delta=1e-5).valid
        True
        """
        score = self._scores(module)
        if reference is not None:
            if reference is module:
                raise ValueError(
                    "reference must be a model that did not see the coins, got the audited one: train one on `outside`"
                )
            score = score - self._scores(reference)
        attributes = {
            "scenario": self.pairs.scenario,
            "adjacency": self.pairs.adjacency,
            "n": len(self),
            "pairs_fingerprint": self.pairs.fingerprint,
            "reference": int(reference is not None),
            "seed": self.seed,
            **{f"pairs_{name}": value for name, value in self.pairs.details.items()},
        }
        return scored_pairs(score.numpy(), self.bits, self.pairs.slots, attributes)

    def _scores(self, module: nn.Module) -> Tensor:
        """(m,): logit(z) − logit(z′), in float64."""
        return self._logits(module, 0) - self._logits(module, 1)

    def _logits(self, module: nn.Module, bit: int) -> Tensor:
        """(m,): log p/(1 − p) of the label of each z or z′, in float64."""
        device = next(module.parameters(), torch.zeros(0)).device
        of_x, of_y = self._keys
        training, logits = module.training, []
        module.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(self.pairs), AT_ONCE):
                    records = [self._filled(i, bit) for i in range(len(self.pairs))[start : start + AT_ONCE]]
                    entries = records[0].keys() - {of_y} if isinstance(records[0], Mapping) else [of_x]
                    batch = {
                        entry: torch.stack([torch.as_tensor(record[entry]) for record in records]).to(device)
                        for entry in entries
                    }
                    outputs = module(batch[of_x]) if of_x == OF_TUPLES[0] else module(**batch)
                    outputs = getattr(outputs, "logits", outputs)
                    labels = torch.tensor([int(record[of_y]) for record in records], device=device)
                    logits.append(label_logits(outputs.double()[..., None], labels)[:, 0].cpu())
        finally:
            module.train(training)
        return torch.cat(logits)


@checks.checked("seed")
def one_run_dataset(
    dataset: Any, pairs: Pairs | Sequence[CanaryPair], *, seed: int, keys: tuple[str, str] = ("input_ids", "labels")
) -> OneRunDataset:
    """Your dataset with z or z′ in each slot by fair coins: train on it as you would, then ask it for the scores.

    Nothing else has to change. The wrapped dataset is as long as yours, so that sample rate and privacy accounting are
    what they were. Each slot's record is sampled as any other.

    Args:
        dataset: a map-style dataset of tuples (x, y) or of dicts, with `__len__` and `__getitem__`. x is a tensor or an
            array, in dicts also a list, and y a whole number. It must return the same record each time: augment later,
            for all records alike.
        pairs: pairs of records, in the shape of the dataset's x. They become of x's kind and dtype, so that tokens stay
            whole numbers.
        seed: ≥ 0; of the coins. Give each training a seed of its own: coins that are used twice are not independent.
        keys: of x and y in records that are dicts, as datasets of Hugging Face give them. All other entries, such as
            an `attention_mask`, stay those of the slot's record. With such entries z and z′ must keep its x, and
            differ in their labels.

    Returns:
        A `OneRunDataset`. `scores(module, reference=…)` scores the trained model, and `dpsub.bound` takes the scores.

    Raises:
        ValueError: if the pairs do not fit the dataset, or its records are dicts without these keys.

    Source: Keinan et al. (2025), Algorithm 1.

    >>> import numpy as np, torch
    >>> from torch.utils.data import TensorDataset
    >>> from dpsub import Pairs
    >>> plain = TensorDataset(torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64))
    >>> x = np.ones((4, 3))
    >>> pairs = Pairs([0, 5, 6, 19], x, x, [0, 1, 0, 1], [1, 0, 1, 0], scenario="ones")
    >>> private = one_run_dataset(plain, pairs, seed=0)
    >>> len(private), private[5][0].tolist(), private[4][0].tolist()
    (20, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    >>> dict(private.scores(torch.nn.Linear(3, 2)).sizes)
    {'model': 1, 'pair': 4}
    """
    pairs = Pairs.of(pairs)
    n = len(dataset)
    if (last := int(pairs.slots.max())) >= n:
        raise ValueError(f"pairs must have slots among the {n} records of the dataset, from 0 to {n - 1}, got {last}")
    item = dataset[int(pairs.slots[0])]
    named = isinstance(item, Mapping)
    if named and not {*keys} <= item.keys():
        there = ", ".join(map(repr, item))
        raise ValueError(f"keys must be the two names of x and y in a record, among {there}, got {keys!r}")
    at = keys if named else OF_TUPLES
    if (shape := tuple(np.shape(item[at[0]]))) != pairs.z.shape[1:]:
        raise ValueError(f"pairs must have x of the shape of the dataset's, {shape}, got {pairs.z.shape[1:]}")
    if named and (others := sorted(map(str, item.keys() - set(at)))):
        for i, slot in enumerate(pairs.slots):
            own = np.asarray(dataset[int(slot)][at[0]], np.float32)
            if not (np.array_equal(own, pairs.z[i]) and np.array_equal(own, pairs.z_prime[i])):
                raise ValueError(
                    f"pairs must keep the {at[0]!r} of their slot's record, since its {', '.join(others)} may not fit "
                    f"others, got another one in pair {i}: take these entries out of the dataset, and let the model "
                    f"or the collate function make them from {at[0]!r}"
                )
    return OneRunDataset(dataset, pairs, seed, at)


def _like(given: Any, value: Any) -> Any:
    """A value of the type of what the dataset gives: a tensor or array of its dtype, a list, or a number."""
    if isinstance(given, Tensor):
        return torch.as_tensor(np.array(value)).to(given.dtype).to(given.device)
    if isinstance(given, np.ndarray | np.generic | list):
        array = np.asarray(value).astype(np.asarray(given).dtype)
        return array.tolist() if isinstance(given, list) else array[()]
    return type(given)(value)
