"""A hospital's training with Opacus, in parts and as a run of an audit."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsub import data


def patients(n_train):
    """Measurements and diagnoses; the first row is Ines's."""
    task = data.breast_cancer(n_train=n_train)
    return torch.tensor(task.x_train), torch.tensor(task.y_train)


def prepare(x, y, *, noise_multiplier, batch_size):
    """Model, optimizer, loader and engine, as Opacus makes them."""
    model, engine = nn.Linear(x.shape[1], 2), PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch_size),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
    )
    return model, optimizer, loader, engine


def fit(model, optimizer, loader, *, epochs):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def train(bit, seed, *, n_train, epochs, **settings):
    """Train with Ines's diagnosis, or with the other one."""
    torch.manual_seed(seed)  # start, batches and noise follow from it
    torch.set_num_threads(1)
    x, y = patients(n_train)
    own = int(y[0])
    y[0] = own if bit == 0 else 1 - own
    model, optimizer, loader, _ = prepare(x, y, **settings)
    fit(model, optimizer, loader, epochs=epochs)
    with torch.no_grad():
        outputs = model(x[:1])[0]
    return float(outputs[own] - outputs[1 - own])
