"""An Opacus step with the auditor against the same step without it: milliseconds, and their ratio, in one run.

`python benchmarks/audit_optimizer.py [--device cuda] [--rounds 9] [--batch 64]`. The model is Opacus's ConvNet for
MNIST, on random images. The two trainings take turns, so that both see the machine in the same state. A step is the
forward and backward pass and the optimizer's step; with the auditor it includes the observation and its judgement.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from dpsub.opacus import audit_optimizer

OPTIMIZERS = {"flat": DPOptimizer, "per_layer": DPPerLayerOptimizer, "ghost": DPOptimizerFastGradientClipping}


def convnet() -> nn.Module:
    """The network of Opacus's MNIST example: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


class Training:
    """A training on batches of random images, with or without an auditor."""

    def __init__(self, clipping: str, canary: str | None, batch: int, device: torch.device) -> None:
        torch.manual_seed(0)
        plain = convnet().to(device).train()
        self.clipping = clipping
        if clipping == "ghost":
            self.model = GradSampleModuleFastGradientClipping(plain, max_grad_norm=1.0, use_ghost_clipping=True)
        else:
            self.model = GradSampleModule(plain)
        bound = [8**-0.5] * 8 if clipping == "per_layer" else 1.0
        self.optimizer = OPTIMIZERS[clipping](
            torch.optim.SGD(self.model.parameters(), lr=0.01), noise_multiplier=1.0, max_grad_norm=bound,
            expected_batch_size=batch,
        )  # fmt: skip
        self.x = torch.randn(batch, 1, 28, 28, device=device)
        self.y = torch.randint(10, (batch,), device=device)
        self.loss = nn.CrossEntropyLoss()
        if clipping == "ghost":
            self.loss = DPLossFastGradientClipping(self.model, self.optimizer, self.loss)
        self.auditor = None
        if canary:
            self.auditor = audit_optimizer(self.optimizer, delta=1e-5, adjacency="substitute", canary=canary)

    def seconds(self, steps: int) -> float:
        """Seconds a step."""
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss(self.model(self.x), self.y).backward()
            self.optimizer.step()
        if self.x.is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=30, help="in a round")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    warnings.filterwarnings("ignore")
    print(f"{device}, {torch.get_num_threads()} threads, batch {arguments.batch}: medians of {arguments.rounds} rounds")
    print(f"{'clipping, canary':28}{'Opacus, ms':>12}{'audited, ms':>13}{'ratio':>9}")
    for clipping, canary in (
        ("flat", "dirac"), ("flat", "diracs"), ("flat", "constant"), ("flat", "random"), ("per_layer", "dirac"),
        ("ghost", "dirac"), ("ghost", "random"),
    ):  # fmt: skip
        plain = Training(clipping, None, arguments.batch, device)
        audited = Training(clipping, canary, arguments.batch, device)
        plain.seconds(5), audited.seconds(5)
        rounds = [(plain.seconds(arguments.steps), audited.seconds(arguments.steps)) for _ in range(arguments.rounds)]
        own, with_auditor = (1e3 * statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = statistics.median(audited / plain for plain, audited in rounds)
        print(f"{clipping + ', ' + canary:28}{own:12.2f}{with_auditor:13.2f}{ratio:8.2f}×", flush=True)


if __name__ == "__main__":
    main()
