"""What a training with Opacus protects, in numbers and in words, for the sampling that its data loader does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from opacus import PrivacyEngine
from opacus.accountants import IAccountant
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

from dpsub._core import checks
from dpsub.accounting.risks import Prior
from dpsub.accounting.samplings import Epochs, History, Poisson, Sampling, WithoutReplacement
from dpsub.accounting.statements import PrivacyStatement, statement_of
from dpsub.opacus.accountant import SubstitutePRVAccountant
from dpsub.opacus.auditors import Auditor, Report

Loader = DataLoader[Any]
POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
CLOSE = 1e-6  # relative; Opacus computes the sample rates of a history from the loader's


@checks.checked("delta", trials=checks.whole)
def privacy_statement(
    engine_or_history: PrivacyEngine | IAccountant | History,
    *,
    delta: float,
    prior: Prior = 0.5,
    data_loader: Loader | Sequence[Loader] | None = None,
    sampling: Sampling | str | None = None,
    auditor: Auditor | None = None,
    trials: int = 1,
) -> PrivacyStatement:
    """State what a training with Opacus protects: membership, and the contents of records.

    Args:
        engine_or_history: a `PrivacyEngine` after training, with any of Opacus's accountants; or an accountant; or
            phases of (noise_multiplier, sample_rate, steps).
        delta: 0 < δ < 1.
        prior: the probability, > 0 and < 1, that an attacker gives one of two values of a label or an attribute before
            seeing the model; or a sequence of such probabilities, one for each value, as in `dpsub.accounting.risk`.
        data_loader: the loader that batches came from, as `make_private` returned it, or a sequence of all such
            loaders. It shows the sampling: Opacus's `DPDataLoader` is "poisson", a shuffled or sequential loader is
            "epochs", one that draws a single batch of the records without replacement each time that it is iterated
            over is "without_replacement", and anything else is refused.
        sampling: "poisson", "epochs" or "without_replacement", as in `dpsub.accounting.epsilon`, where there is no
            loader to show it. The default is that of the accountant if it is dpsub's, else "poisson".
        auditor: what `audit_optimizer` returned for this training. The statement says what it found, and first of all
            if it refuted the training.
        trials: ≥ 1; of so many trainings on the same records, all with this history, the best is stated. All numbers
            are for all of them together, whatever the others' settings, if these cost no more privacy.

    Returns:
        A `PrivacyStatement`, which prints as a text to paste, and whose `to_dict()` is for a file.

    Raises:
        ValueError: if `delta` is out of range, no step has been taken, a step added no noise, the history does not
            consist of such phases, or the steps contradict the loader, the sampling or the auditor.

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
    return statement_of(
        history,
        delta=delta,
        prior=prior,
        sampling=drawn or Poisson(),
        trials=trials,
        loader_seen=data_loader is not None,
        reported=_reported(accountant, delta),
        audit=None if auditor is None else _report(auditor, history),
    )


def _report(auditor: Auditor, history: History) -> Report:
    """What the auditor reports, if the training that it observed can be the one of the history."""
    report, steps, noise = auditor.report(), sum(steps for *_, steps in history), {sigma for sigma, *_ in history}
    if report.observations > steps or not np.isclose([*noise], report.noise_multiplier, rtol=CLOSE, atol=0).any():
        raise ValueError(
            f"auditor must be of the training that is stated, {steps:,} steps at noise multiplier {sorted(noise)}, got "
            f"one of {report.observations:,} steps at {report.noise_multiplier:g}: give that of its optimizer, and an "
            "accountant that recorded all its steps"
        )
    return report


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
