"""An Opacus accountant for substitute adjacency, and what the sizes of batches say about how they were sampled."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from opacus.accountants import IAccountant, PRVAccountant, register_accountant
from opacus.optimizers import DPOptimizer
from scipy.stats import binom

from dpsub import accounting
from dpsub.accounting import Sampling

NEGLIGIBLE = 1e-9  # the probability below which Poisson sampling is ruled out


class SubstitutePRVAccountant(PRVAccountant):  # type: ignore[misc]
    r"""Opacus's PRV accountant for substitute adjacency: one record replaced by another, a label or an attribute.

    It records steps as Opacus's own PRV accountant does. Its ε is `dpsub.accounting.epsilon` of that history: a
    certified upper bound. It assumes Poisson sampling, as Opacus's accountants do. After
    `make_private(poisson_sampling=False)` say so: `engine.accountant.sampling = "epochs"`, or "without_replacement" if
    each batch is drawn anew as so many of all records. Opacus does not tell its accountants, but this one refuses an ε
    for Poisson sampling once the batches that it has seen rule that out: their sizes do not vary as they should, or
    gradients were accumulated. With ghost clipping it sees no batch sizes, so it cannot refuse.
    `make_private_with_epsilon` always calibrates for Poisson sampling; for epochs, take the noise from
    `dpsub.accounting.noise_multiplier(sampling="epochs")`. Where skipped steps joined several batches, there is no ε.

    With adaptive clipping (`AdaClipDPOptimizer`) the true ε can be larger than that of any accountant, this one
    included: the share of unclipped gradients that Opacus releases shows more of a record than is accounted for.

    Args:
        sampling: "poisson", "epochs" or "without_replacement", as in `dpsub.accounting.epsilon`.

    >>> accountant = SubstitutePRVAccountant()
    >>> for _ in range(500):
    ...     accountant.step(noise_multiplier=12.115, sample_rate=0.25)
    >>> round(accountant.get_epsilon(delta=1e-5), 2)
    3.99
    """

    def __init__(self, sampling: Sampling | str = "poisson") -> None:
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
        options: dict[str, Any] = {"adjacency": "substitute", "sampling": self.sampling, "eps_error": eps_error}
        return float(accounting.epsilon(history=self.history, delta=delta, **options))

    def check_sampling(self, sampling: Sampling | str) -> None:
        """Raise ValueError if `sampling` is Poisson's and the batches seen so far rule that out, or if they rule out
        any sampling: if skipped steps joined several batches, so that a step may hold a record more than once.
        """
        assumed = Sampling.of(sampling)
        if reason := self._batch_sizes.against_all:
            raise ValueError(
                f"accountant.history must be of steps that took one batch each, whole or in parts, got steps in which "
                f"skipped ones joined several batches, for {reason}: no ε is known for this. Draw batches of the "
                "whole size, and let BatchMemoryManager split them"
            )
        if assumed.own_coins and (reason := self._batch_sizes.against_poisson):
            raise ValueError(
                "sampling must be 'epochs' or 'without_replacement' for batches that are not Poisson's, got "
                f"'{assumed}', and {reason}: set accountant.sampling = 'epochs' if each record is in one batch an "
                "epoch, or 'without_replacement' if each batch is drawn anew as so many of all records; or train with "
                "make_private(poisson_sampling=True), whose ε is smaller"
            )

    def state_dict(self, destination: Any = None) -> Any:
        """A checkpoint: what Opacus's accountants keep, the sampling, and which ones the batches rule out.

        It is written into `destination`, a dictionary, if one is given.
        """
        state = super().state_dict(destination)
        state["sampling"] = str(self.sampling)
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
        loaded_against_poisson, loaded_against_all: `against_poisson` and `against_all` of a loaded checkpoint.
    """

    def __init__(self, loaded_against_poisson: str = "", loaded_against_all: str = "") -> None:
        self._loaded_against_poisson, self._loaded_against_all = loaded_against_poisson, loaded_against_all
        self._accumulated = False
        self._split = False
        self._least = self._expected = 0.0  # records in all steps: at least, and on average at most
        self._first_of_pair: int | None = None  # the size of its batch
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
        if self._first_of_pair is None:
            self._first_of_pair = size
            return
        self._pairs += 1
        self._equal += size == self._first_of_pair
        self._chance = max(self._chance, equal_chance(float(optimizer.expected_batch_size), sample_rate))
        self._first_of_pair = None

    @property
    def against_poisson(self) -> str:
        """What rules Poisson sampling out, in words; empty if nothing does."""
        if self._loaded_against_poisson:
            return self._loaded_against_poisson
        if self._accumulated:
            return "gradients of several batches were accumulated in a step"
        if not self._split and self._equal and binom.sf(self._equal - 1, self._pairs, self._chance) < NEGLIGIBLE:
            return f"{self._equal} of {self._pairs} pairs of successive batches were of equal size"
        return ""

    @property
    def against_all(self) -> str:
        """What shows that skipped steps joined several batches, in words; empty if nothing does.

        A record may then be in a step several times, and no sample rate describes that.
        """
        if self._loaded_against_all or not self._split or self._least <= self._expected:
            return self._loaded_against_all
        # Chernoff's bound on the chance of so many records, whatever the sample rates.
        exponent = self._least * math.log(self._least / self._expected) - self._least + self._expected
        if exponent < -math.log(NEGLIGIBLE):
            return ""
        return f"{self._least:.0f} or more records were in batches, where {self._expected:.0f} are expected at most"


@lru_cache
def equal_chance(expected_batch_size: float, sample_rate: float) -> float:
    """The probability that two Poisson batches are of equal size. A batch has Bin(n, q) records."""
    n = math.ceil(expected_batch_size / sample_rate)
    spread = math.sqrt(expected_batch_size * (1 - sample_rate))
    least, most = math.floor(expected_batch_size - 12 * spread), math.ceil(expected_batch_size + 12 * spread)
    sizes = np.arange(max(0, least), most + 1)
    return float(np.sum(binom.pmf(sizes, n, sample_rate) ** 2))


def attached_accountant(optimizer: DPOptimizer) -> tuple[IAccountant | None, float | None]:
    """The accountant attached to an optimizer, and the sample rate of a batch; None if the step hook is not Opacus's.

    Opacus keeps both only as variables that the hook closes over.
    """
    hook = optimizer.step_hook
    variables = inspect.getclosurevars(hook).nonlocals if inspect.isfunction(hook) else {}
    accountant = variables.get("self")
    return (accountant, variables.get("sample_rate")) if isinstance(accountant, IAccountant) else (None, None)


register_accountant(SubstitutePRVAccountant.mechanism(), SubstitutePRVAccountant, force=True)
