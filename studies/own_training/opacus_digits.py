"""A training with Opacus as its users write it, as a run of an audit."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsub import data


def train(bit, seed, *, n_train, noise_multiplier, batch_size, epochs):
    """Train on the digits; score the label of the first record.

    z is this record with its own label, and z′ has the next label.
    """
    torch.manual_seed(seed)  # start, batches and noise follow from it
    torch.set_num_threads(1)
    task = data.digits(n_train=n_train)
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    own = int(y[0])
    other = (own + 1) % task.num_classes
    y[0] = own if bit == 0 else other

    model = nn.Linear(x.shape[1], task.num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for records, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(records), labels).backward()
            optimizer.step()

    with torch.no_grad():
        outputs = model(x[:1])[0]
    return float(outputs[own] - outputs[other])
