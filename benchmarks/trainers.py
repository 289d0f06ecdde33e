"""Banks against Opacus, one model at a time: models·steps per second on the same work, in one run, as ratios.

`python benchmarks/trainers.py [--device cuda] [--rounds 3] [--only Purchase100]`. "Published" is the loop of the
papers' code, PrivacyEngine with its DataLoader; "lean" hands tensors straight to GradSampleModule and DPOptimizer. The
floor is the time that the matrix products of the sampled records and the normals alone would take, at rates measured
here. With `--threads 1` times are the processor's, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpsub
from dpsub.models import Model
from dpsub.models.modules import ModuleBank

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from modules_of_others import MODULES


def random_task(n: int, shape: tuple[int, ...], classes: int) -> dpsub.data.Task:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, *shape)) / np.prod(shape) ** 0.5
    return dpsub.data.from_arrays(x, rng.integers(0, classes, n), num_classes=classes)


def optimizer_for(module: nn.Module, spec: dpsub.DPSGD) -> torch.optim.Optimizer:
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[spec.optimizer](module.parameters(), spec.learning_rate)


def published(task: dpsub.data.Task, model: Model, spec: dpsub.DPSGD, steps: int, device: torch.device) -> None:
    data = TensorDataset(torch.as_tensor(task.x_train, device=device), torch.as_tensor(task.y_train, device=device))
    module = model.module().to(device).train()
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer_for(module, spec),
        data_loader=DataLoader(data, batch_size=int(spec.sample_rate * len(data))),
        noise_multiplier=spec.noise_multiplier,
        max_grad_norm=spec.max_grad_norm,
        poisson_sampling=spec.sample_rate < 1,
    )
    taken = 0
    while taken < steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                break


def lean(task: dpsub.data.Task, model: Model, spec: dpsub.DPSGD, steps: int, device: torch.device) -> None:
    x, y = torch.as_tensor(task.x_train, device=device), torch.as_tensor(task.y_train, device=device)
    module = GradSampleModule(model.module().to(device).train())
    optimizer = DPOptimizer(
        optimizer_for(module, spec),
        noise_multiplier=spec.noise_multiplier,
        max_grad_norm=spec.max_grad_norm,
        expected_batch_size=spec.sample_rate * len(y),
    )
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        batch = torch.rand(len(y), device=device) < spec.sample_rate if spec.sample_rate < 1 else slice(None)
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()


def bank(task: dpsub.data.Task, model: Model, spec: dpsub.DPSGD, runs: int, device: torch.device) -> None:
    z = np.zeros(model.parameters, dtype=np.float32)
    z[0] = spec.max_grad_norm
    canary = dpsub.CanaryPair(z, -z, slot=0, scenario="S2")
    dpsub.audit(task, model, canary, spec, runs=runs, observe_every=spec.steps, device=device.type, progress=False)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def flop_a_record(task, model) -> float:
    """Forward, the gradient by the weights, and by the inputs of all layers but the first. NaN for modules.

    As torch's layers compute it. Banks of ConvNets leave out what pooling drops.
    """
    if isinstance(model, ModuleBank):
        return float("nan")
    products: list[int] = []

    def count(layer, inputs, outputs):
        products.append(2 * layer.weight[0].numel() * outputs[0].numel())

    module = model.module()
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    module(torch.as_tensor(task.x_train[:1]))
    return 3 * sum(products) - products[0]


def rates(device: torch.device) -> tuple[float, float]:
    """FLOP and normals a second: a product like a block's, and normals as torch draws them (on a CPU, on one core)."""
    left, right = torch.randn(1000, 768, device=device), torch.randn(768, 2560, device=device)
    normals = torch.empty(2**24, device=device)
    product, draw = (lambda: [left @ right for _ in range(10)]), normals.normal_
    times = [[seconds(work, device) for _ in range(6)][1:] for work in (product, draw)]
    return 20 * left.numel() * right.shape[1] / min(times[0]), normals.numel() / min(times[1])


def cases() -> Iterator[tuple[str, dpsub.data.Task, Model, dpsub.DPSGD]]:
    task = random_task(500, (768,), 10)
    for q in (1.0, 0.25, 0.0625):
        model, spec = dpsub.models.linear(task), dpsub.DPSGD(20, 2, q, 100, 1e-3)
        yield f"CIFAR-10 head, q = {q:g}", task, model, spec
        started = model.starting_from(np.zeros(model.parameters))  # a start that is given is in no span of records
        yield f"CIFAR-10 head, all coordinates, q = {q:g}", task, started, spec
    task = random_task(2_000, (600,), 100)
    for q in (0.25, 0.0625):
        spec = dpsub.DPSGD(5, 5, q, 10, 1.8e-3, "adam")
        yield f"Purchase100 MLP, n = 2000, q = {q:g}", task, dpsub.models.mlp(task), spec
    task = random_task(500, (1, 28, 28), 10)
    for q in (1.0, 0.25):
        yield f"MNIST ConvNet, n = 500, q = {q:g}", task, dpsub.models.convnet(task), dpsub.DPSGD(5, 1, q, 4, 0.5)
    task = random_task(500, (8, 8), 10)
    for name, make in MODULES.items():
        torch.manual_seed(0)
        model = dpsub.models.from_module(make(), task)
        for q in (1.0, 0.25):
            yield f"module: {name}, n = 500, q = {q:g}", task, model, dpsub.DPSGD(5, 1, q, 20, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measure the cases whose name contains this")
    parser.add_argument("--threads", type=int, help="of torch; 1 compares the bank with one lean loop on each core")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    warnings.filterwarnings("ignore")
    gemm, normal = rates(device)
    threads = torch.get_num_threads()
    print(f"{device}, {threads} threads: {gemm / 1e9:.0f} GFLOP/s in products, {normal / 1e6:.0f} million normals/s")
    print(f"medians of {arguments.rounds} rounds: microseconds a model and step; how many times as fast the bank is")
    print(f"{'':40}{'published':>10}{'lean':>8}{'bank':>8}{'floor':>8}{'published':>12}{'lean':>8}{'of floor':>10}")
    for name, task, model, spec in cases():
        if arguments.only not in name:
            continue
        runs = 128 * (2 * threads if device.type == "cpu" else 8)
        if not isinstance(model, dpsub.models.Linear) and device.type == "cpu":
            runs = 128 * threads

        loops: dict[str, tuple[Callable[[], None], int]] = {
            "published": (partial(published, task, model, spec, spec.steps, device), spec.steps),
            "lean": (partial(lean, task, model, spec, spec.steps, device), spec.steps),
            "bank": (partial(bank, task, model, spec, runs, device), runs * spec.steps),
        }
        published(task, model, spec, 2, device)
        lean(task, model, spec, 2, device)
        bank(task, model, spec, 8, device)
        taken: dict[str, list[float]] = {loop: [] for loop in loops}
        for _ in range(arguments.rounds):
            for loop, (work, units) in loops.items():
                taken[loop].append(1e6 * seconds(work, device) / units)
        median = {loop: statistics.median(times) for loop, times in taken.items()}
        floor = 1e6 * (
            spec.sample_rate * len(task.y_train) * flop_a_record(task, model) / gemm + model.parameters / normal
        )
        print(
            f"{name:40}{median['published']:10.0f}{median['lean']:8.0f}{median['bank']:8.1f}{floor:8.1f}"
            f"{median['published'] / median['bank']:11.1f}×{median['lean'] / median['bank']:7.1f}×"
            f"{median['bank'] / floor:9.2f}×"
        )


if __name__ == "__main__":
    main()
