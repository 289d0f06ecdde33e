from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset


class Trained(NamedTuple):
    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any


@pytest.fixture(scope="session")
def steps():
    """A history of two phases."""
    return [(1.1, 0.1, 30), (1.4, 0.1, 20)]


@pytest.fixture(scope="session")
def trained():
    """Trains a small model with Opacus, ten batches an epoch."""

    def train(accountant="prv_substitute", epochs=2, accumulated=1, most=None, **private):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.randint(2, (60,))), batch_size=6)
        engine = PrivacyEngine(accountant=accountant)
        make = engine.make_private
        if "target_epsilon" in private:
            make, private["epochs"] = engine.make_private_with_epsilon, epochs
        model, optimizer, loader = make(
            module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, **private
        )
        split = BatchMemoryManager(data_loader=loader, max_physical_batch_size=most or 100, optimizer=optimizer)
        with split if most else nullcontext(loader) as batches:
            for _ in range(epochs):
                for i, (x, y) in enumerate(batches):
                    torch.nn.functional.cross_entropy(model(x), y).backward()
                    if (i + 1) % accumulated == 0:
                        optimizer.step()
                        optimizer.zero_grad()
        return Trained(engine, model, optimizer, loader)

    return train
