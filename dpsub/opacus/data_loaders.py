"""Which sampling a PyTorch data loader does, and whether a history of steps can come from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

Loader = DataLoader[Any]
POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
CLOSE = 1e-6  # relative; Opacus computes the sample rates of a history from the loader's


def sampling_of(data_loader: Loader | Sequence[Loader], rates: set[float]) -> str:
    """How these loaders draw batches, "poisson" or "epochs", if the sample rates of a history are theirs.

    Raises:
        ValueError: if one is no data loader, draws in another way, or cannot have led to these sample rates; or if
            there are several and not all are Poisson.
    """
    loaders = [data_loader] if isinstance(data_loader, DataLoader) else data_loader
    if not isinstance(loaders, Sequence) or not loaders or not all(isinstance(one, DataLoader) for one in loaders):
        raise ValueError(f"data_loader must be a torch DataLoader, or a sequence of them, got {data_loader!r}")
    batches = [_batches(loader) for loader in loaders]
    if all(isinstance(one, POISSON) for one in batches):
        known = [one.sample_rate for one in batches]
        if strange := sorted(rate for rate in rates if not any(abs(rate - one) <= CLOSE * one for one in known)):
            raise ValueError(
                f"data_loader must be what the steps were trained on, with their sample rate {strange[0]:g}, got "
                f"{', '.join(f'{one:g}' for one in known)}: give all loaders that were used"
            )
        return "poisson"
    if len(loaders) > 1:
        raise ValueError(
            "data_loader must be a single one unless all sample by Poisson: a record may be in batches of each. Use an "
            "engine for each, and state what each protects"
        )
    steps = len(batches[0])
    for rate in sorted(rates):
        taken = rate * steps  # batches whose gradients were accumulated in a step
        if abs(taken - round(taken)) > CLOSE * steps or steps % max(round(taken), 1):
            raise ValueError(
                f"data_loader must have batches that fill whole steps, with their sample rate {rate:g}, got one with "
                f"{steps} batches an epoch, {taken:g} to a step: give the loader that was trained on. If gradients "
                "were accumulated across the end of an epoch, a step may use a record twice: this is not covered"
            )
    return "epochs"


def _batches(loader: Loader) -> Any:
    """The sampler of the loader's batches, if it is Poisson's or puts each record into one batch an epoch."""
    batches: Any = loader.batch_sampler
    if isinstance(batches, BatchSplittingSampler):
        batches = batches.sampler
    if isinstance(batches, POISSON) or (type(batches) is BatchSampler and _once(batches.sampler)):
        return batches
    order = batches.sampler if type(batches) is BatchSampler else batches
    raise ValueError(
        "data_loader must sample by Poisson (Opacus's DPDataLoader) or use each record once an epoch, got one with the "
        f"sampler {type(order).__name__}, for which no ε is known: use make_private(poisson_sampling=True)"
    )


def _once(order: Any) -> bool:
    """Whether an order of records has none of them twice. Subclasses may do anything."""
    if type(order) is RandomSampler:
        return not order.replacement and order.num_samples <= len(order.data_source)
    if type(order) is SubsetRandomSampler:
        return len(set(order.indices)) == len(order.indices)
    if type(order) is DistributedSampler:
        return order.total_size <= len(order.dataset)  # type: ignore[arg-type]  # else it pads with records again
    return type(order) is SequentialSampler
