"""An Opacus accountant for substitute adjacency, and what the sizes of batches say about how they were sampled."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from opacus.accountants import PRVAccountant, register_accountant
from opacus.optimizers import DPOptimizer
from scipy.stats import binom

from dpsub import accounting
from dpsub._core import checks

CERTAIN = 1e-9  # the probability below which Poisson sampling is ruled out


class SubstitutePRVAccountant(PRVAccountant):  # type: ignore[misc]
    r"""Opacus's PRV accountant for substitute adjacency: one record replaced by another, a label or an attribute.

    It records steps as Opacus's own PRV accountant does. Its ε is `dpsub.accounting.epsilon` of that history: a
    certified upper bound. It assumes Poisson sampling, as Opacus's accountants do. After
    `make_private(poisson_sampling=False)` say so: `engine.accountant.sampling = "epochs"`, or "without_replacement" if
    each batch is drawn anew as so many of all records. Opacus does not tell its
    accountants, but this one refuses an ε for Poisson sampling once the batches that it has seen rule that out: their
    sizes do not vary as they should, or gradients were accumulated. `make_private_with_epsilon` always calibrates for
    Poisson sampling; for epochs, take the noise from `dpsub.accounting.noise_multiplier(sampling="epochs")`. Where
    skipped steps joined several batches, there is no ε.

    Args:
        sampling: "poisson", "epochs" or "without_replacement", as in `dpsub.accounting.epsilon`.

    >>> accountant = SubstitutePRVAccountant()
    >>> for _ in range(500):
    ...     accountant.step(noise_multiplier=12.115, sample_rate=0.25)
    >>> round(accountant.get_epsilon(delta=1e-5), 2)
    3.99
    """

    def __init__(self, sampling: str = "poisson") -> None:
        super().__init__()
        self.sampling = sampling
        self._batch_sizes = BatchSizes()

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """What Opacus calls at each step of the optimizer."""
        record = super().get_optimizer_hook_fn(sample_rate)

        def hook(optimizer: DPOptimizer) -> None:
            self._batch_sizes.see(optimizer, sample_rate)
            record(optimizer)

        return hook

    def get_epsilon(self, delta: float, *, eps_error: float = 1e-3, **_: Any) -> float:
        """ε spent so far.

        Args:
            delta: 0 < δ < 1.
            eps_error: > 0; half the width of the certified interval, absolute or relative to ε, as in
                `dpsub.accounting.epsilon`.

        Returns:
            ε; 0 before the first step, and infinity if a step added no noise.

        Raises:
            ValueError: if an argument is out of range, if the history is not a record of steps, or if the batches rule
                `sampling` out.
        """
        if len(self.history) == 0:
            return 0.0
        if any(sigma == 0 for sigma, *_ in self.history):
            return math.inf
        self.check_sampling(self.sampling)
        found = accounting.epsilon(
            history=self.history, delta=delta, adjacency="substitute", sampling=self.sampling, eps_error=eps_error
        )
        return float(found)

    def check_sampling(self, sampling: str) -> None:
        """Raise ValueError if `sampling` is "poisson" and the batches seen so far rule that out, or if they rule out
        any sampling: if skipped steps joined several batches, so that a step may hold a record more than once.
        """
        checks.choice("sampling", sampling, checks.SAMPLINGS)
        if reason := self._batch_sizes.against_all:
            raise ValueError(
                f"accountant.history must be of steps that took one batch each, whole or in parts, got steps in which "
                f"skipped ones joined several batches, for {reason}: no ε is known for this. Draw batches of the "
                "whole size, and let BatchMemoryManager split them"
            )
        if sampling == "poisson" and (reason := self._batch_sizes.against_poisson):
            raise ValueError(
                "sampling must be 'epochs' or 'without_replacement' for batches that are not Poisson's, got 'poisson', "
                f"and {reason}: set accountant.sampling = 'epochs' if each record is in one batch an epoch, or "
                "'without_replacement' if each batch is drawn anew as so many of all records; or train with "
                "make_private(poisson_sampling=True), whose ε is smaller"
            )

    def state_dict(self, destination: Any = None) -> Any:
        """A checkpoint: what Opacus's accountants keep, the sampling, and which ones the batches rule out.

        It is written into `destination`, a dictionary, if one is given.
        """
        state = super().state_dict(destination)
        state["sampling"] = self.sampling
        state["ruled_out"] = [self._batch_sizes.against_poisson, self._batch_sizes.against_all]
        return state

    @classmethod
    def mechanism(cls) -> str:
        return "prv_substitute"

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint of this accountant. A checkpoint of another accountant raises ValueError."""
        recorded = state_dict.get("mechanism", self.mechanism())
        if recorded != self.mechanism():
            raise ValueError(
                f"state_dict must be of the accountant {self.mechanism()!r}, got one of {recorded!r}: its ε is for "
                f"add/remove adjacency; to continue from its steps, assign accountant.history = state_dict['history']"
            )
        super().load_state_dict(state_dict)
        self.history = list(state_dict["history"])  # a copy: the accountant appends to it
        self.sampling = state_dict.get("sampling", self.sampling)
        self._batch_sizes = BatchSizes(*state_dict.get("ruled_out", ()))


class BatchSizes:
    """Collects the sizes of batches from an optimizer, to tell fixed sizes from those of Poisson, and the parts of one
    batch, as `BatchMemoryManager` makes them, from several batches in one step.

    Args:
        poisson_earlier, all_earlier: `against_poisson` and `against_all` of the batches before a checkpoint.
    """

    def __init__(self, poisson_earlier: str = "", all_earlier: str = "") -> None:
        self._poisson_earlier, self._all_earlier = poisson_earlier, all_earlier
        self._accumulated = False
        self._split = False
        self._least = self._expected = 0.0  # records in all steps: at least, and on average at most
        self._earlier: int | None = None  # the first batch of a pair
        self._pairs = self._equal = 0
        self._chance = 0.0

    def see(self, optimizer: DPOptimizer, sample_rate: float) -> None:
        """Called by the optimizer at each step, before its gradients are cleared."""
        # Opacus does not accumulate the gradients of Poisson batches.
        self._accumulated |= optimizer.accumulated_iterations > 1
        split = getattr(optimizer, "_is_last_step_skipped", True)
        self._split |= split
        sample = getattr(optimizer.params[0], "grad_sample", None)
        if self._accumulated or sample is None or not optimizer.expected_batch_size:
            return
        size = len(sample) - getattr(sample, "canary_rows", 0)
        self._least += 2 * size if split else size  # the last part of a batch is the smallest
        self._expected += optimizer.expected_batch_size + 1  # Opacus rounds it down
        if self._split:  # a batch that was split does not show its size, and the others are the small ones
            return
        if self._earlier is None:
            self._earlier = size
            return
        self._pairs += 1
        self._equal += size == self._earlier
        self._chance = max(self._chance, equal_chance(float(optimizer.expected_batch_size), sample_rate))
        self._earlier = None

    @property
    def against_poisson(self) -> str:
        """What rules Poisson sampling out, in words; empty if nothing does."""
        if self._poisson_earlier:
            return self._poisson_earlier
        if self._accumulated:
            return "gradients of several batches were accumulated in a step"
        if not self._split and self._equal and binom.sf(self._equal - 1, self._pairs, self._chance) < CERTAIN:
            return f"{self._equal} of {self._pairs} pairs of successive batches were of equal size"
        return ""

    @property
    def against_all(self) -> str:
        """What shows that skipped steps joined several batches, in words; empty if nothing does.

        A record may then be in a step several times, and no sample rate describes that.
        """
        if self._all_earlier or not self._split or self._least <= self._expected:
            return self._all_earlier
        # Chernoff's bound on the chance of so many records, whatever the sample rates.
        exponent = self._least * math.log(self._least / self._expected) - self._least + self._expected
        if exponent < -math.log(CERTAIN):
            return ""
        return f"{self._least:.0f} or more records were in batches, where {self._expected:.0f} are expected at most"


@lru_cache
def equal_chance(expected_batch_size: float, sample_rate: float) -> float:
    """The probability that two Poisson batches are of equal size. A batch has Bin(n, q) records."""
    n = math.ceil(expected_batch_size / sample_rate)
    spread = math.sqrt(expected_batch_size * (1 - sample_rate))
    least, most = expected_batch_size - 12 * spread, expected_batch_size + 12 * spread
    sizes = np.arange(max(0, math.floor(least)), math.ceil(most) + 1)
    return float(np.sum(binom.pmf(sizes, n, sample_rate) ** 2))


def accounted(optimizer: DPOptimizer) -> Mapping[str, Any]:
    """What the accountant attached to an optimizer closes over: "self" and "sample_rate", if it is one of Opacus's."""
    hook = optimizer.step_hook
    return inspect.getclosurevars(hook).nonlocals if inspect.isfunction(hook) else {}


register_accountant(SubstitutePRVAccountant.mechanism(), SubstitutePRVAccountant, force=True)
