"""A dataset for one's own training loop, in which fair coins exchange records, and the scores of what it trained."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.provenance import versions
from dpsub._core.random_streams import stream
from dpsub.audits.one_run import LONG_NAMES, ONE_RUN, PAIR
from dpsub.audits.own_training import OWN_FUNCTION
from dpsub.trainers import label_logits

AT_ONCE = 256  # records


class OneRunDataset(Dataset[Any]):
    """A dataset of records (x, y), in which each slot of the pairs holds z or z′. `one_run_dataset` makes it.

    Attributes:
        pairs: what fills the slots.
        bits: (m,) int8, read-only: 0 where z is in the slot, 1 where z′ is. Training must not look at them.
        seed: of the coins.
    """

    def __init__(self, dataset: Any, pairs: Pairs, seed: int) -> None:
        self._dataset, self.pairs, self.seed = dataset, pairs, seed
        bits = stream(seed, "one_run").integers(0, 2, len(pairs), dtype=np.int8)
        bits.flags.writeable = False
        self.bits: NDArray[np.int8] = bits
        self._pair_of = {int(slot): i for i, slot in enumerate(pairs.slots)}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        try:
            at = operator.index(None if isinstance(index, bool) else index)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(
                f"index must be the number of one record, got {index!r}: take several by torch.utils.data.Subset"
            ) from None
        if not -len(self) <= at < len(self):
            raise IndexError(f"index must be one of {len(self)} records, got {at}")
        i = self._pair_of.get(at % len(self))
        if i is None:
            found: tuple[Any, Any] = self._dataset[at]
            return found
        assert self.pairs.y is not None
        assert self.pairs.y_prime is not None
        x, y = (self.pairs.z, self.pairs.y) if self.bits[i] == 0 else (self.pairs.z_prime, self.pairs.y_prime)
        like_x, like_y = self._dataset[at]
        return _like(like_x, x[i]), _like(like_y, y[i])

    def scores(self, module: nn.Module) -> xr.Dataset:
        """Score the model that was trained on this dataset.

        Args:
            module: takes a batch of records x, and returns logits (records, classes). It is put in evaluation mode and
                back. Its parameters' device is used.

        Returns:
            A dataset as `audit_one_run` returns: `score` (model, pair) float32 with one model, logit(z) − logit(z′),
            where logit is log p/(1 − p) for the probability p of the record's label; and `bit` (model, pair) int8.

        Raises:
            ValueError: if `module` is no module, or does not return finite logits for the labels of the pairs.
        """
        if not isinstance(module, nn.Module):
            raise ValueError(f"module must be a torch.nn.Module, got a {type(module).__name__}")
        assert self.pairs.y is not None
        assert self.pairs.y_prime is not None
        z = self._logits(module, self.pairs.z, self.pairs.y)
        score = (z - self._logits(module, self.pairs.z_prime, self.pairs.y_prime)).numpy().astype(np.float32)
        attributes = {
            "audited": ONE_RUN,
            "trained_by": OWN_FUNCTION,
            "scenario": self.pairs.scenario,
            "adjacency": self.pairs.adjacency,
            "n": len(self),
            "models": 1,
            "pairs": len(self.pairs),
            "pairs_fingerprint": self.pairs.fingerprint,
            "seed": self.seed,
            **{f"pairs_{name}": value for name, value in self.pairs.details.items()},
            **{f"version_{name}": version for name, version in versions("torch").items()},
        }
        dims = ("model", PAIR)
        return xr.Dataset(
            {
                "score": (dims, score[None], {"long_name": LONG_NAMES["score"]}),
                "bit": (dims, self.bits[None].copy(), {"long_name": LONG_NAMES["bit"]}),
            },
            coords={"slot": (PAIR, self.pairs.slots)},
            attrs=attributes,
        )

    def _logits(self, module: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]) -> Tensor:
        """(m,): log p/(1 − p) of each record's label, in float64."""
        like_x, _ = self._dataset[int(self.pairs.slots[0])]
        first = next(module.parameters(), torch.zeros(0))
        training, found = module.training, []
        module.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(x), AT_ONCE):
                    part = slice(start, start + AT_ONCE)
                    batch = torch.stack([torch.as_tensor(_like(like_x, one)) for one in x[part]])
                    outputs = _outputs(module, batch.to(first.device))
                    labels = torch.tensor(y[part], device=first.device)
                    _check_outputs(outputs, labels)
                    found.append(label_logits(outputs.double()[..., None], labels)[:, 0].cpu())
        finally:
            module.train(training)
        return torch.cat(found)


@checks.checked("seed")
def one_run_dataset(dataset: Any, pairs: Pairs | Sequence[CanaryPair], *, seed: int) -> OneRunDataset:
    """Your dataset with z or z′ in each slot by fair coins: train on it as you would, then ask it for the scores.

    Nothing else has to change. The wrapped dataset is as long as yours, so that sample rate and privacy accounting are
    what they were. Each slot's record is sampled as any other.

    Args:
        dataset: a map-style dataset of tuples (x, y), with `__len__` and `__getitem__`. x is a tensor or an array, y a
            whole number. It must return the same record each time: augment later, for all records alike.
        pairs: pairs of records, in the shape of the dataset's x. They become of x's kind and dtype, so that tokens stay
            whole numbers.
        seed: ≥ 0; of the coins. Give each training a seed of its own: coins that are used twice are not independent.

    Returns:
        A `OneRunDataset`. `scores(module)` scores the trained model.

    Raises:
        ValueError: if the dataset is no map-style dataset of (x, y), or the pairs are gradients, or do not fit it.

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
    expected = "dataset must be a map-style dataset of tuples (x, y), with __len__ and __getitem__"
    pairs = Pairs.of(pairs)
    if not pairs.of_records:
        raise ValueError("pairs must be of records, which a dataset can hold, got gradients")
    try:
        n = len(dataset)
        items = [dataset[int(slot)] for slot in pairs.slots if slot < n][:1]
    except (TypeError, NotImplementedError, KeyError, IndexError, AttributeError):
        raise ValueError(f"{expected}, got a {type(dataset).__name__}") from None
    if (last := int(pairs.slots.max())) >= n:
        raise ValueError(f"pairs must have slots among the {n} records of the dataset, from 0 to {n - 1}, got {last}")
    if len(pairs) == n:
        raise ValueError(f"pairs must leave a record that is not in a slot, got {n} slots for {n} records")
    [item] = items
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"{expected}, got a {type(item).__name__} as its record")
    x, y = item
    if not isinstance(x, Tensor | np.ndarray) or not _is_one_number(y):
        raise ValueError(
            f"dataset must have tensors or arrays as x, and one number as y, got a {type(x).__name__} "
            f"and a {type(y).__name__}"
        )
    if tuple(x.shape) != pairs.z.shape[1:]:
        raise ValueError(f"pairs must have x of the shape of the dataset's, {tuple(x.shape)}, got {pairs.z.shape[1:]}")
    return OneRunDataset(dataset, pairs, seed)


def _is_one_number(y: Any) -> bool:
    if isinstance(y, Tensor | np.ndarray):
        return y.ndim == 0
    return isinstance(y, int | np.integer)


def _like(given: Any, value: Any) -> Any:
    """A value of the type of what the dataset gives: a tensor or array of its dtype, or a number."""
    if isinstance(given, Tensor):
        return torch.as_tensor(np.array(value)).to(given.dtype).to(given.device)
    if isinstance(given, np.ndarray | np.generic):
        return np.asarray(value).astype(given.dtype)[()]
    return type(given)(value)


def _outputs(module: nn.Module, batch: Tensor) -> Any:
    try:
        return module(batch)
    except RuntimeError as error:
        raise ValueError(
            f"module must take batches of records {tuple(batch.shape)}, got one of which torch says: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _check_outputs(outputs: Any, labels: Tensor) -> None:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(labels):
        told = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"module must return logits ({len(labels)}, classes) for {len(labels)} records, got {told}")
    if int(labels.max()) >= outputs.shape[1]:
        raise ValueError(
            f"module must return a logit for each label, got {outputs.shape[1]} logits and a label {int(labels.max())}"
        )
    if not torch.isfinite(outputs).all():
        raise ValueError("module must return finite logits, got some that are not: did its training diverge?")
