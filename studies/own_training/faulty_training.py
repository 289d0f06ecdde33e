"""A training with DP-SGD that adds its noise in parts."""

import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import TensorDataset


class MicrobatchOptimizer(DPOptimizer):
    parts = 4  # one for each microbatch

    def std_of_each(self):
        std = self.noise_multiplier * self.max_grad_norm
        return std / self.parts

    def add_noise(self):
        std = self.std_of_each()
        for p in self.params:
            noise = sum(
                std * torch.randn(p.shape) for _ in range(self.parts)
            )
            p.grad = p.summed_grad.view_as(p) + noise


def prepare(
    x, y, *, sample_rate, noise_multiplier, seed, kind=MicrobatchOptimizer
):
    torch.manual_seed(seed)
    model = GradSampleModule(nn.Linear(x.shape[1], 10))
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=sample_rate * len(x),
    )
    loader = DPDataLoader(TensorDataset(x, y), sample_rate=sample_rate)
    return model, optimizer, loader


def train(model, optimizer, loader, *, epochs):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
