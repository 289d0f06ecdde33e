from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch.utils.data import DataLoader, TensorDataset


class Trained(NamedTuple):
    engine: PrivacyEngine
    model: Any
    optimizer: Any
    auditor: Any
    loader: Any


@pytest.fixture(scope="session")
def steps():
    """A history of two phases."""
    return [(1.1, 0.1, 30), (1.4, 0.1, 20)]


@pytest.fixture(scope="session")
def trained():
    """Trains a small model with Opacus, ten batches an epoch, under an `audit` and a `schedule` of its optimizer.

    Batches are `joined` by skipped steps, and are split into at most so many records. Schedulers step `first`, or after
    the optimizer.
    """

    def train(
        accountant="prv_substitute", epochs=2, *, accumulated=1, joined=1, most=None, optimizer=torch.optim.SGD,
        clipping="flat", schedule=lambda _: [], first=False, audit=lambda _: None, secure=False, seed=0, **private,
    ):  # fmt: skip
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        records = TensorDataset(torch.randn(60, 5), torch.randint(2, (60,)))
        loader = DataLoader(records, batch_size=6, generator=torch.Generator().manual_seed(seed))
        engine, criterion = PrivacyEngine(accountant=accountant), torch.nn.CrossEntropyLoss()
        make = engine.make_private
        if "target_epsilon" in private:
            make, private["epochs"] = engine.make_private_with_epsilon, epochs
        ghost = {"grad_sample_mode": "ghost", "criterion": criterion} if clipping == "ghost" else {"clipping": clipping}
        model, optimizer, *criteria, loader = make(
            module=model, optimizer=optimizer(model.parameters(), 0.1), data_loader=loader,
            max_grad_norm=[0.5] * 4 if clipping == "per_layer" else 1.0,
            noise_generator=torch.Generator().manual_seed(seed), **ghost, **private,
        )  # fmt: skip
        optimizer.secure_mode = secure
        auditor, schedulers, criterion = audit(optimizer), schedule(optimizer), [criterion, *criteria][-1]
        split = BatchMemoryManager(data_loader=loader, max_physical_batch_size=most or 100, optimizer=optimizer)
        with split if most else nullcontext(loader) as batches:
            for i, (x, y) in enumerate((batch for _ in range(epochs) for batch in batches), start=1):
                criterion(model(x), y).backward()
                if joined > 1:
                    optimizer.signal_skip_step(i % joined > 0)
                if i % accumulated:
                    continue
                for one in (*schedulers, optimizer) if first else (optimizer, *schedulers):
                    one.step()
                optimizer.zero_grad()
        return Trained(engine, model, optimizer, auditor, loader)

    return train


KINDS = {
    "flat": DPOptimizer,
    "per_layer": DPPerLayerOptimizer,
    "ghost": DPOptimizerFastGradientClipping,
    "adaptive": AdaClipDPOptimizer,
}


class Private:
    """A small model in Opacus's hands, without a loader: `step` takes a batch of random records."""

    def __init__(self, kind="flat", *, noise_multiplier=1.0, batch=8, reduction="mean", optimizer=None, lr=0.1, c=1.5):
        torch.manual_seed(0)
        plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        self.kind, self.batch = kind, batch
        self.criterion = torch.nn.CrossEntropyLoss(reduction=reduction)
        about = {"loss_reduction": reduction}
        if kind == "ghost":
            about |= {"max_grad_norm": c, "use_ghost_clipping": True}
            self.model = GradSampleModuleFastGradientClipping(plain, **about)
        else:
            self.model = GradSampleModule(plain, **about)
        bound = [c / 2] * 4 if kind == "per_layer" else c
        more = {}
        if kind == "adaptive":
            more = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0}
            more |= {"min_clipbound": 0.1, "unclipped_num_std": 2.0}
        self.optimizer = (optimizer or KINDS[kind])(
            torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.5),
            noise_multiplier=noise_multiplier, max_grad_norm=bound, expected_batch_size=batch,
            loss_reduction=reduction, generator=torch.Generator().manual_seed(1), **more,
        )  # fmt: skip
        self.data = torch.Generator().manual_seed(2)

    @property
    def parameters(self):
        return list(self.optimizer.params)

    def backward(self, size=None):
        size = self.batch if size is None else size
        x, y = torch.randn(size, 6, generator=self.data), torch.randint(3, (size,), generator=self.data)
        if self.kind == "ghost":
            loss = DPLossFastGradientClipping(self.model, self.optimizer, self.criterion, self.criterion.reduction)
            loss(self.model(x), y).backward()
        else:
            self.criterion(self.model(x), y).backward()

    def step(self, size=None):
        """One step, and the gradients that it was taken with."""
        self.optimizer.zero_grad()
        self.backward(size)
        self.optimizer.step()
        return [parameter.grad.clone() for parameter in self.parameters]


@pytest.fixture(scope="session")
def private():
    return Private
