"""Fine-tuning with Opacus as its users write it: a new head on features."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from dpsub import data


def encoded(task, *, width=64, epochs=200, seed=0):
    """The task with features in place of pixels.

    The encoder is one layer. It is trained on the auxiliary records, which
    are public, and then frozen. Features have a length of 3.
    """
    torch.manual_seed(seed)
    x, y = torch.tensor(task.x_aux), torch.tensor(task.y_aux)
    layer = nn.Linear(x.shape[1], width)
    whole = nn.Sequential(layer, nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(x), y).backward()
        optimizer.step()

    @torch.no_grad()
    def features(records):
        found = torch.relu(layer(torch.tensor(records)))
        return (3 * nn.functional.normalize(found)).numpy()

    made = data.from_arrays(
        features(task.x_train),
        task.y_train,
        x_aux=features(task.x_aux),
        y_aux=task.y_aux,
        x_test=features(task.x_test),
        y_test=task.y_test,
        num_classes=task.num_classes,
        name=f"{task.name}, encoded",
    )
    return made


def fine_tune(
    dataset, classes, *, noise_multiplier, batch_size, epochs, seed
):
    """Train a linear head on a dataset of (features, label).

    Returns:
        The head, the privacy engine, and the data loader.
    """
    torch.manual_seed(seed)  # start, batches and noise follow from it
    x, _ = dataset[0]
    head = nn.Linear(len(x), classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    loader = DataLoader(dataset, batch_size=batch_size)
    engine = PrivacyEngine(accountant="prv")
    head, optimizer, loader = engine.make_private(
        module=head,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for records, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(records), labels).backward()
            optimizer.step()
    return head, engine, loader


@torch.no_grad()
def accuracy(head, task):
    """The share of test records that the head labels rightly."""
    found = head(torch.tensor(task.x_test)).argmax(dim=1)
    return float((found == torch.tensor(task.y_test)).float().mean())
