"""What a training with Opacus protects, in numbers and in words, for the sampling that its data loader does."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opacus import PrivacyEngine
from opacus.accountants import IAccountant
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

from dpsub import accounting
from dpsub._core import checks
from dpsub.accounting.risks import Risk
from dpsub.accounting.samplings import Epochs, History, Poisson, Sampling, WithoutReplacement
from dpsub.opacus.accountant import SubstitutePRVAccountant

Loader = DataLoader[Any]
POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
CLOSE = 1e-6  # relative; Opacus computes the sample rates of a history from the loader's
REASONS = {  # why Opacus's accountants report another ε of membership
    "rdp": "a looser bound for the same adjacency, from Rényi divergences",
    "prv": "the same but for numerical errors",
    "gdp": "an approximation that can be too small, and no bound",
}
SURE = 1 - 1e-9  # from this probability on the text says that a belief has no limit
FALSE_ALARMS = 0.01  # the false-positive rate at which a statement says what an attack can find


@dataclass(frozen=True)
class PrivacyStatement:
    """What a training protects: as numbers, and as a text by `str`.

    Attributes:
        add_remove: ε under add/remove adjacency, which protects membership, if the number of records is public or if
            neither the sample rate nor the expected batch size follows from it. None unless sampling is Poisson's, cut
            or not: with other batches it does not exist, since a removed record would change those of the others.
        zero_out: ε under zero-out adjacency: a record is replaced by nothing, and the others stay in their batches. It
            equals `add_remove` for Poisson sampling, and is at most `substitute` for batches of fixed size, where no
            other is known.
        substitute: ε under substitute adjacency, which protects a record's contents.
        poisson: what `substitute` would be with Poisson batches of the same noise multiplier, sample rate and steps.
        group_privacy: the substitute ε that group privacy derives from `zero_out` accounting alone; None for batches of
            fixed size.
        found_members: the largest share of the members that an attack can identify at a 1 % false-positive rate.
        found_contents: the same for the records with one of two values, where the attack decides between the two.
        risk: what an attacker with a prior can learn about a record's contents, under substitute adjacency.
        delta: the δ of all of them.
        history: phases of (noise_multiplier, sample_rate, steps).
        sampling: how batches were drawn, a `dpsub.accounting.Sampling`: what all numbers but `poisson` hold for.
        loader_seen: whether the sampling was read from a data loader.
        reported: the name of Opacus's own accountant and the ε that it reports; None for dpsub's, or a history.
    """

    add_remove: float | None
    zero_out: float
    substitute: float
    poisson: float
    group_privacy: float | None
    found_members: float
    found_contents: float
    risk: Risk
    delta: float
    history: tuple[tuple[float, float, int], ...]
    sampling: Sampling
    loader_seen: bool
    reported: tuple[str, float] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in self._paragraphs())

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self._paragraphs())

    def _paragraphs(self) -> list[str]:
        """Of the text, in this order: training and sampling; membership; contents; plain words; what to state."""
        phases = [
            f"{steps:,} steps at noise multiplier {sigma:.4g} and sample rate {q:.4g}"
            for sigma, q, steps in self.history
        ]
        if len(phases) > 3:
            steps = sum(count for *_, count in self.history)
            phases = [f"{steps:,} steps in {len(phases)} phases of different noise multiplier or sample rate"]
        if self.add_remove is None:
            presence, where = "zero-out", "used or left out of its batches"
            holds = f"Under add/remove adjacency there is no ε: {self.sampling.without_epsilon['add_remove']}."
        else:
            presence, where = "add/remove", "in the training data"
            holds = (
                "This holds only if the number of records is public, or if the sample rate and the expected batch size "
                "were fixed without it. Opacus computes both from the number of records."
            )
        by_groups = ""
        if self.group_privacy is not None and self.group_privacy < math.inf:
            accounted = presence if self.sampling.own_coins else "zero-out"
            by_groups = f" From {accounted} accounting alone, group privacy would give ε = {_up(self.group_privacy)}."
        return [
            f"This model was trained with differentially private SGD ({'; '.join(phases)}; δ = {self.delta:g}). "
            + self._assumed_sampling(),
            f"Membership: whether a record was {where} is protected with ε = "
            f"{_up(self.zero_out if self.add_remove is None else self.add_remove)} ({presence} "
            f"adjacency). {holds}{self._opacus_epsilon()} At a 1 % false-positive rate, an attack identifies at most "
            f"{_percent(self.found_members)} of the members.",
            "Labels and attributes: the contents of a record known to be in the training data are protected with "
            f"ε = {_up(self.substitute)} (substitute adjacency). An attack that decides which of two values a record "
            "has, and takes 1 % of the records with the second value for ones with the first, identifies at most "
            f"{_percent(self.found_contents)} of those with the first." + self._effect_of_sampling(),
            self._in_plain_words(),
            f"State the substitute ε to protect a record's contents and the {presence} ε to protect its presence. "
            "Always name the adjacency. The substitute ε is an upper bound computed for this training." + by_groups,
        ]

    def _in_plain_words(self) -> str:
        prior, sure = self.risk.prior[0], self.risk.posterior
        once_in = math.floor((1 + 1e-9) / self.delta)
        return (
            "In plain words: an attacker who knows all other records, and gives a label or another value of a record a "
            f"probability of {100 * prior:.4g} % before seeing the model, guesses whether the record has it and is "
            f"right with a probability of at most {_percent(self.risk.accuracy)}. Without the model that "
            f"probability is {100 * max(prior, 1 - prior):.7g} %. "
            + (
                f"In all but at most one of {once_in:,} training runs, the attacker ends at most {_percent(sure)} sure "
                "that the record has it."
                if sure < SURE
                else "How sure the attacker becomes that the record has it is not limited."
            )
        )

    def _opacus_epsilon(self) -> str:
        """Why Opacus reports another ε for the same steps."""
        if self.reported is None:
            return ""
        name, epsilon = self.reported
        why = REASONS.get(name, "another method") if self.sampling == Poisson() else "for Poisson batches alone"
        return f" Opacus's accountant {name!r} reports ε = {epsilon:.3g}, {why}."

    def _effect_of_sampling(self) -> str:
        """What the sampling does to the ε of a record's contents."""
        if self.sampling == Poisson():
            return " A replaced record leaves the number of records as it was."
        share = "Most of this ε comes from" if self.poisson < self.substitute / 2 else "This ε depends on"
        return (
            f" {share} how batches were drawn and averaged: with Poisson batches, divided by their expected size, and "
            f"the same noise, sample rate and steps it would be {_up(self.poisson)} "
            "(make_private(poisson_sampling=True))."
        )

    def _assumed_sampling(self) -> str:
        """For which sampling the numbers hold, and how it is known."""
        if self.sampling == Poisson() and not self.loader_seen:
            return (
                "The numbers hold only if batches were drawn by Poisson sampling, which was not checked: pass "
                "data_loader to check it. With shuffled batches the true ε are larger."
            )
        return f"The numbers hold for {self.sampling.words}{', as its data loader shows' if self.loader_seen else ''}."


@checks.checked("delta", prior=checks.probability)
def privacy_statement(
    engine_or_history: PrivacyEngine | IAccountant | History,
    *,
    delta: float,
    prior: float = 0.5,
    data_loader: Loader | Sequence[Loader] | None = None,
    sampling: Sampling | str | None = None,
) -> PrivacyStatement:
    """State what a training with Opacus protects: membership, and the contents of records.

    Args:
        engine_or_history: a `PrivacyEngine` after training, with any of Opacus's accountants; or an accountant; or
            phases of (noise_multiplier, sample_rate, steps).
        delta: 0 < δ < 1.
        prior: the probability, > 0 and < 1, that an attacker gives one of two values of a label or an attribute before
            seeing the model.
        data_loader: the loader that batches came from, as `make_private` returned it, or a sequence of all such
            loaders. It shows the sampling: Opacus's `DPDataLoader` is "poisson", a shuffled or sequential loader is
            "epochs", one that draws a single batch of the records without replacement each time that it is iterated
            over is "without_replacement", and anything else is refused.
        sampling: "poisson", "epochs" or "without_replacement", as in `dpsub.accounting.epsilon`, where there is no
            loader to show it. The default is that of the accountant if it is dpsub's, else "poisson".

    Returns:
        A `PrivacyStatement`, which prints as a text to paste.

    Raises:
        ValueError: if `delta` is out of range, no step has been taken, a step added no noise, the history does not
            consist of such phases, or the steps contradict the loader or the sampling.

    With adaptive clipping (`AdaClipDPOptimizer`) the true ε can be larger: see `SubstitutePRVAccountant`.

    Source: *Beyond Membership*, sections 2.1 and 4.

    >>> print(privacy_statement([(1.1, 0.064, 469)], delta=1e-5).substitute > 2)
    True
    """
    accountant = getattr(engine_or_history, "accountant", engine_or_history)
    recorded = getattr(accountant, "history", accountant)
    history = tuple(checks.history(recorded, "engine_or_history", "a PrivacyEngine, an accountant or "))
    drawn = None if sampling is None else Sampling.of(sampling)
    if data_loader is not None:
        shown = sampling_of(data_loader, {rate for _, rate, _ in history})
        if drawn not in (None, shown):
            raise ValueError(f"sampling must be that of data_loader, '{shown}', got '{drawn}': leave it out")
        drawn = shown
    if isinstance(accountant, SubstitutePRVAccountant):
        drawn = drawn or Sampling.of(accountant.sampling)
        accountant.check_sampling(drawn)
    drawn = drawn or Poisson()
    mechanism: dict[str, Any] = {"history": history, "sampling": drawn}

    def identified(adjacency: str) -> float:
        return 1 - float(accounting.tradeoff(FALSE_ALARMS, adjacency=adjacency, **mechanism))

    def epsilon(adjacency: str, **other: Sampling) -> float:
        return float(accounting.epsilon(delta=delta, adjacency=adjacency, **{**mechanism, **other}))

    # A record that is replaced by nothing is replaced.
    presence = "substitute" if "zero_out" in drawn.without_epsilon else "zero_out"
    zero_out = epsilon(presence)
    # Where a record's coin is its own, it makes no difference to the others whether it is left out or removed.
    removed = None
    if "add_remove" not in drawn.without_epsilon:
        removed = zero_out if drawn.own_coins else epsilon("add_remove")
    return PrivacyStatement(
        add_remove=removed,
        zero_out=zero_out,
        substitute=epsilon("substitute"),
        poisson=epsilon("substitute", sampling=Poisson()),
        group_privacy=accounting.group_privacy_epsilon(delta=delta, **mechanism) if presence == "zero_out" else None,
        found_members=identified(presence if removed is None else "add_remove"),
        found_contents=identified("substitute"),
        risk=accounting.risk(prior=prior, fpr=FALSE_ALARMS, delta=delta, adjacency="substitute", **mechanism),
        delta=delta,
        history=history,
        sampling=drawn,
        loader_seen=data_loader is not None,
        reported=_reported(accountant, delta),
    )


def _reported(accountant: Any, delta: float) -> tuple[str, float] | None:
    if not isinstance(accountant, IAccountant) or isinstance(accountant, SubstitutePRVAccountant):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that GDP is experimental, which the statement says
            return accountant.mechanism(), float(accountant.get_epsilon(delta))
    except Exception:  # GDP's takes no phases, and others may not take these
        return None


def sampling_of(data_loader: Loader | Sequence[Loader], rates: set[float]) -> Sampling:
    """How these loaders draw batches, if the sample rates of a history are theirs.

    Raises:
        ValueError: if a loader draws in another way, or cannot have led to these sample rates; or if
            there are several and not all are Poisson.
    """
    loaders = [data_loader] if isinstance(data_loader, DataLoader) else data_loader
    samplers = [_batch_sampler(loader) for loader in loaders]
    steps, records = len(samplers[0]), getattr(samplers[0], "sampler", None)
    sampling: Sampling = Epochs()
    loader_rates: list[float] = []  # empty for epochs, where batches may be accumulated
    if all(isinstance(sampler, POISSON) for sampler in samplers):
        loader_rates, sampling = [sampler.sample_rate for sampler in samplers], Poisson()
    elif len(loaders) > 1:
        raise ValueError(
            "data_loader must be a single one unless all sample by Poisson: a record may be in batches of each. Use an "
            "engine for each, and state what each protects"
        )
    elif steps == 1 and type(records) is RandomSampler and records.num_samples < len(records.data_source):
        loader_rates, sampling = [records.num_samples / len(records.data_source)], WithoutReplacement()
    for rate in sorted(rates):
        if loader_rates and not any(abs(rate - share) <= CLOSE * share for share in loader_rates):
            raise ValueError(
                f"data_loader must be what the steps were trained on, with their sample rate {rate:g}, got "
                f"{', '.join(f'{share:g}' for share in loader_rates)}: give all loaders that were used"
            )
        joined = rate * steps  # batches whose gradients a step accumulated
        if not loader_rates and (abs(joined - round(joined)) > CLOSE * steps or steps % max(round(joined), 1)):
            raise ValueError(
                f"data_loader must have batches that fill whole steps, with their sample rate {rate:g}, got one with "
                f"{steps} batches an epoch, {joined:g} to a step: give the loader that was trained on. If gradients "
                "were accumulated across the end of an epoch, a step may use a record twice: this is not covered"
            )
    return sampling


def _batch_sampler(loader: Loader) -> Any:
    """The sampler of the loader's batches, if it is Poisson's or puts each record into one batch an epoch."""
    batches: Any = loader.batch_sampler
    if isinstance(batches, BatchSplittingSampler):
        batches = batches.sampler
    if isinstance(batches, POISSON) or (type(batches) is BatchSampler and _no_record_twice(batches.sampler)):
        return batches
    order = batches.sampler if type(batches) is BatchSampler else batches
    raise ValueError(
        "data_loader must sample by Poisson (Opacus's DPDataLoader) or use each record once an epoch, got one with the "
        f"sampler {type(order).__name__}, for which no ε is known: use make_private(poisson_sampling=True)"
    )


def _no_record_twice(order: Any) -> bool:
    """Whether an order of records has none of them twice. Subclasses may do anything."""
    if type(order) is RandomSampler:
        return not order.replacement and order.num_samples <= len(order.data_source)
    if type(order) is SubsetRandomSampler:
        return len(set(order.indices)) == len(order.indices)
    if type(order) is DistributedSampler:
        return order.total_size <= len(order.dataset)  # type: ignore[arg-type]  # else it pads with records again
    return type(order) is SequentialSampler


def _up(epsilon: float) -> str:
    """ε with three digits, rounded up so that an upper bound remains one."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit) * unit:.{max(0, 2 - math.floor(math.log10(epsilon)))}f}"


def _percent(rate: float) -> str:
    """With one decimal, or as many as it takes to stay below 100, rounded up."""
    decimals = 1 if rate < 0.999 or rate >= SURE else math.floor(-math.log10(1 - rate)) - 1
    return f"{math.ceil(10 ** (decimals + 2) * rate) / 10**decimals:.12g} %"
