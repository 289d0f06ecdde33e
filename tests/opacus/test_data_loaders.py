import warnings
from pathlib import Path

import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dpsub.opacus.data_loaders import sampling_of

ROOT = Path(__file__).parents[2]
DATA = TensorDataset(torch.zeros(60, 1))
TEN = {0.1}  # the sample rates of ten batches an epoch


def loader(sampler=None, **options):
    return DataLoader(DATA, batch_size=6, sampler=sampler, **options)


def poisson():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DPDataLoader.from_data_loader(loader())


class Doubled(RandomSampler):
    """A sampler that looks like one of torch's and is not."""

    def __iter__(self):
        return iter([0] * len(self))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Odd(Sampler):
    def __iter__(self):
        return iter([[0, 0]])


@pytest.mark.parametrize(
    "one",
    [
        loader(),
        loader(shuffle=True),
        DataLoader(DATA, batch_size=6, shuffle=True, drop_last=True),
        loader(SubsetRandomSampler(range(59, -1, -1))),
        loader(RandomSampler(DATA, num_samples=55)),
        DataLoader(DATA, batch_size=3, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        wrap_data_loader(data_loader=loader(), max_batch_size=2, optimizer=None),
    ],
)
def test_loaders_that_use_each_record_once_an_epoch(one):
    assert sampling_of(one, TEN) == "epochs"


@pytest.mark.parametrize(
    "one",
    [poisson(), wrap_data_loader(data_loader=poisson(), max_batch_size=2, optimizer=None), [poisson(), poisson()]],
)
def test_loaders_of_poisson_sampling(one):
    assert sampling_of(one, TEN) == "poisson"


@pytest.mark.parametrize(
    ("one", "named"),
    [
        (loader(WeightedRandomSampler(torch.ones(60), 60)), "WeightedRandomSampler"),
        (loader(RandomSampler(DATA, replacement=True)), "RandomSampler"),
        (loader(RandomSampler(DATA, num_samples=61)), "RandomSampler"),
        (loader(SubsetRandomSampler([*range(30), *range(30)])), "SubsetRandomSampler"),
        (loader(Doubled(DATA)), "Doubled"),
        (loader(DistributedSampler(DATA, num_replicas=7, rank=0)), "DistributedSampler"),
        (DataLoader(DATA, batch_sampler=Odd()), "Odd"),
        (DataLoader(DATA, batch_sampler=BatchSampler(Odd(), 6, False)), "Odd"),
        (DataLoader(Stream(), batch_size=6), "_InfiniteConstantSampler"),
        (DataLoader(DATA, batch_size=None), "NoneType"),
    ],
)
def test_other_loaders_are_refused_by_the_name_of_their_sampler(one, named):
    with pytest.raises(ValueError, match=f"data_loader must sample by Poisson .* got one with the sampler {named}"):
        sampling_of(one, TEN)


@pytest.mark.parametrize("bad", [[], None, "loader", [1], DATA])
def test_what_is_no_loader_is_refused(bad):
    with pytest.raises(ValueError, match="data_loader must be a torch DataLoader, or a sequence of them, got"):
        sampling_of(bad, TEN)


def test_steps_of_another_loader_are_refused():
    with pytest.raises(ValueError, match=r"with their sample rate 0.2, got 0.1: give all loaders"):
        sampling_of(poisson(), {0.1, 0.2})
    with pytest.raises(
        ValueError, match=r"batches that fill whole steps, with their sample rate 0.25, got .* 2.5 to a"
    ):
        sampling_of(loader(), {0.25})


def test_gradients_accumulated_within_epochs_are_covered_and_across_their_end_are_not():
    assert sampling_of(loader(), {0.2}) == "epochs"
    with pytest.raises(ValueError, match=r"10 batches an epoch, 3 to a step: .* may use a record twice"):
        sampling_of(loader(), {0.1 * 3})


def test_several_loaders_of_epochs_are_refused():
    with pytest.raises(ValueError, match="data_loader must be a single one unless all sample by Poisson"):
        sampling_of([loader(), poisson()], TEN)


def test_the_page_on_epsilon_has_opacus_sample_rates_and_their_epsilons():
    page = " ".join((ROOT / "book/which_epsilon_to_state.md").read_text().split())
    n, batch, epochs = 1_000, 300, 10

    def stated(key):
        return f"{{glue:text}}`../notebooks/figA5_adjacency_ratio.ipynb::figA5_{key}:.2f`"

    rates, steps = [], []
    for drop_last in (False, True):
        data = DataLoader(TensorDataset(torch.zeros(n, 1)), batch_size=batch, drop_last=drop_last)
        rates.append(DPDataLoader.from_data_loader(data).sample_rate)
        steps.append(epochs * len(data))
    assert rates[0] != batch / n
    for told in (
        f"{n:,} records in batches of {batch}",
        f"So q = {rates[0]:g} instead of {batch / n:g}, a batch has {n * rates[0]:g} records",
        f"{epochs} epochs are {steps[0]} steps",
        f"the substitute ε is {stated('loader')}. For q = {batch / n:g} it would be {stated('by_size')}.",
        f"q = 1/{round(1 / rates[1])} in {steps[1]} steps, and ε = {stated('drop_last')}.",
    ):
        assert told in page
