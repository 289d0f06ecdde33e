import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(scope="session")
def steps():
    """A history of two phases."""
    return [(1.1, 0.1, 30), (1.4, 0.1, 20)]


@pytest.fixture(scope="session")
def trained():
    """Trains a small model with Opacus, ten steps an epoch."""

    def train(accountant="prv_substitute", epochs=2, **private):
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
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return engine, model, optimizer

    return train
