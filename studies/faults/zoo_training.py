"""A small training on the digits, right or with a fault of the zoo, and what an audit observes of a record of it."""

import numpy as np
import torch
from opacus import GradSampleModule
from torch import nn
from torch.utils.data import TensorDataset

from dpsub import data

SLOT = 0  # the record whose gradient an audit may replace
OFTEN = 5.0  # the weight of its class, if the sampler is weighted


class Training:
    """A network with one hidden layer, in two groups of parameters, trained by an entry of `zoo.ZOO`.

    If `alike`, all records but the slot's are copies of one.
    """

    def __init__(
        self, trainer, *, n_train=300, batch_size=30, noise_multiplier=2.0, learning_rate=0.1, alike=False, seed=0
    ):
        torch.manual_seed(seed)
        task = data.digits(n_train=n_train)
        x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
        if alike:
            x[SLOT + 1 :], y[SLOT + 1 :] = x[-1].clone(), y[-1].clone()
        body, head = nn.Linear(x.shape[1], 16), nn.Linear(16, 10)
        groups = [{"params": part.parameters()} for part in (body, head)]
        self.records = n_train
        self.sample_rate = batch_size / n_train
        self.model = GradSampleModule(nn.Sequential(body, nn.Tanh(), head))
        self.optimizer = trainer.optimizer(
            torch.optim.SGD(groups, lr=learning_rate),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            expected_batch_size=batch_size,
        )
        self.optimizer.records = n_train
        self.optimizer.sample_rate = self.sample_rate
        self.data = TensorDataset(x, y, torch.arange(n_train))
        weights = torch.where(y == y[SLOT], OFTEN, 1.0)
        self.loader = trainer.loader(self.data, batch_size, weights)

    def gradients_of(self, x, y):
        """Leave the gradients of these records in the parameters."""
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()

    def batches(self):
        """Compute the gradients of one batch after the other and yield its records' numbers; the caller steps."""
        while True:
            for x, y, numbers in self.loader:
                self.gradients_of(x, y)
                yield numbers


def observe_record(training, steps, *, adjacency, seed):
    """Train for some steps with a record of the data set as canary.

    In each step a fair coin says what the record's gradient is, if the batch has the record: C or -C times a unit
    vector (substitution), or C times it or no record at all (add/remove). Returns for each step the product of the
    released sum with the canary, how short the sum is, and the coin.
    """
    optimizer, rng = training.optimizer, np.random.default_rng(seed)
    clipping, size = optimizer.max_grad_norm, optimizer.expected_batch_size
    bits = rng.integers(0, 2, steps)
    product, shortness = np.zeros(steps), np.zeros(steps)
    for t, numbers in zip(range(steps), training.batches(), strict=False):
        here = numbers == SLOT
        removed = adjacency == "add_remove" and bits[t] == 1
        for p in optimizer.params:
            p.grad_sample[here] = 0.0
        first = optimizer.params[0]
        first.grad_sample[here, 0, 0] = clipping * (1.0 - 2 * bits[t])
        if removed:
            for p in optimizer.params:
                p.grad_sample = p.grad_sample[~here]
        optimizer.records = training.records - int(removed)
        optimizer.step()
        released = torch.cat([p.grad.flatten() for p in optimizer.params])
        product[t] = float(released[0]) * size / clipping
        # A divisor that follows from n is larger with the record.
        shortness[t] = -float(released.norm()) * size / clipping
    return product, shortness, bits


def not_seen_yet(product, bits, *, noise_multiplier, sample_rate):
    """The steps at which the record is likely, if each epoch has it once.

    A step is chosen from the earlier steps of its epoch alone: if, given what they showed, its chance exceeds 1.5 times
    the sample rate.
    """
    signs = 1 - 2 * bits
    likely = np.exp((signs * product - 0.5) / noise_multiplier**2)
    epoch = round(1 / sample_rate)
    chosen = np.zeros(len(likely), dtype=bool)
    for start in range(0, len(likely), epoch):
        ratios = likely[start : start + epoch]
        shown = np.cumsum(ratios) - ratios
        chances = 1 / (shown + epoch - np.arange(len(ratios)))
        chosen[start : start + epoch] = chances > 1.5 * sample_rate
    return chosen
