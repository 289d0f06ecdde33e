"""A zoo of faults: DP-SGD with one mistake each, to test audits on.

Each class differs from Opacus in the lines in which the mistake is made.
"""

from dataclasses import dataclass

import torch
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, WeightedRandomSampler


class ClipsTheAverage(DPOptimizer):
    def clip_and_accumulate(self):
        size = self.expected_batch_size
        averages = [g.sum(dim=0) / size for g in self.grad_samples]
        norm = torch.stack([average.norm() for average in averages]).norm()
        factor = min(1.0, self.max_grad_norm / (float(norm) + 1e-6))
        for p, average in zip(self.params, averages, strict=True):
            p.summed_grad = factor * average * size


class ClipsEachLayer(DPOptimizer):
    def clip_and_accumulate(self):
        for p, g in zip(self.params, self.grad_samples, strict=True):
            norms = g.flatten(start_dim=1).norm(dim=1)
            factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1)
            p.summed_grad = torch.einsum("i,i...", factors, g)


class SumsBeforeClipping(DPOptimizer):
    microbatches = 4

    def clip_and_accumulate(self):
        for p, g in zip(self.params, self.grad_samples, strict=True):
            size = -(-len(g) // self.microbatches)
            summed = g.new_zeros(size, *g.shape[1:])
            for microbatch in g.split(max(size, 1)):
                summed[: len(microbatch)] += microbatch
            p.grad_sample = summed
        super().clip_and_accumulate()


class DrawsFewSeeds(DPOptimizer):
    seeds = 100

    def add_noise(self):
        seed = int(torch.randint(self.seeds, ()))
        self.generator = torch.Generator().manual_seed(seed)
        super().add_noise()


class ScalesTheNoise(DPOptimizer):
    scale = 0.5

    def add_noise(self):
        right = self.noise_multiplier
        self.noise_multiplier = self.scale * right
        super().add_noise()
        self.noise_multiplier = right


class NoiseOnOneGroup(DPOptimizer):
    def add_noise(self):
        super().add_noise()
        for group in self.param_groups[1:]:
            for p in group["params"]:
                p.grad = p.summed_grad.view_as(p)


class NoiseOfMicrobatches(DPOptimizer):
    microbatches = 4
    share = 1 / 4  # of the noise's scale that each of them adds

    def add_noise(self):
        std = self.share * self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = p.summed_grad.view_as(p)
            for _ in range(self.microbatches):
                p.grad = p.grad + std * torch.randn(p.shape)


class NoiseForEachMicrobatch(NoiseOfMicrobatches):
    share = 1


class NoiseOfWorkers(DPOptimizer):
    workers = 4

    def add_noise(self):
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            # Each worker adds it to its average. Then these are averaged.
            noises = std * torch.randn(self.workers, *p.shape)
            p.grad = p.summed_grad.view_as(p) + noises.mean(dim=0)


class DividesByN(DPOptimizer):
    """`records` and `sample_rate` are set by whoever holds the data."""

    def scale_grad(self):
        self.expected_batch_size = int(self.records * self.sample_rate)
        super().scale_grad()


def poisson(dataset, batch_size, weights=None):
    """What is right: a coin for each record in each step."""
    return DPDataLoader(dataset, sample_rate=batch_size / len(dataset))


def shuffled(dataset, batch_size, weights=None):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)


def weighted(dataset, batch_size, weights):
    draws = WeightedRandomSampler(weights, len(dataset))
    return DataLoader(dataset, batch_size=batch_size, sampler=draws)


@dataclass(frozen=True)
class Trainer:
    """An optimizer, a sampler, and what is wrong with them."""

    what: str
    optimizer: type = DPOptimizer
    loader: object = poisson


def scaled_noise(scale):
    """Noise that is `scale` times what is claimed."""
    kind = type("ScalesTheNoise", (ScalesTheNoise,), {"scale": scale})
    return Trainer(f"The noise is scaled by {scale:g}.", kind)


ZOO = {
    "right": Trainer("Nothing is wrong."),
    "clips the average": Trainer("The average of the batch is clipped, not each gradient.", ClipsTheAverage),
    "clips each layer": Trainer("Each layer is clipped to the norm that all together may have.", ClipsEachLayer),
    "sums before clipping": Trainer("Gradients of four microbatches are summed before clipping.", SumsBeforeClipping),
    "100 seeds": Trainer("The noise of each step comes from one of 100 seeds.", DrawsFewSeeds),
    "half the noise": Trainer("The noise has half its standard deviation.", ScalesTheNoise),
    "noise on one group": Trainer("Only the first group of parameters gets noise.", NoiseOnOneGroup),
    "noise of microbatches": Trainer(
        "Each of four microbatches adds a quarter of the noise's scale.", NoiseOfMicrobatches
    ),
    "noise of workers": Trainer("Each of four workers adds the noise, and then all is averaged.", NoiseOfWorkers),
    "too much noise": Trainer("Each of four microbatches adds all of the noise.", NoiseForEachMicrobatch),
    "shuffled": Trainer("Batches are shuffled epochs. The accountant is told Poisson.", loader=shuffled),
    "weighted": Trainer("Records of one class are drawn more often than is accounted for.", loader=weighted),
    "divides by n": Trainer("The divisor of each sum follows from the number of records.", DividesByN),
}
