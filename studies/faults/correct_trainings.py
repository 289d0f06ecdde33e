"""How often correct trainings with Opacus are accused, by kind of training.

    python -m studies.faults.correct_trainings studies/faults/correct_trainings.csv

A cell is 200 trainings of one kind: a linear model with 18 parameters on 200 records, 100 steps, with an auditor from
the first one on. At α = 0.05 at most one in twenty may be refuted. A table that exists is continued.
"""

import sys
import warnings
from contextlib import nullcontext
from itertools import product

import torch
from opacus import PrivacyEngine, schedulers
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

from dpsub.opacus import audit_optimizer
from studies.kept import continued
from studies.trainings import DELTA

TRAININGS, STEPS, RECORDS, ALPHA = 200, 100, 200, 0.05
ADJACENCIES = ("substitute", "add_remove", "zero_out")
KINDS = {
    "flat": {},
    "per layer": {"clipping": "per_layer"},
    "ghost": {"clipping": "ghost"},
    "Adam": {"optimizer": torch.optim.Adam},
    "AdamW": {"optimizer": torch.optim.AdamW},
    "batches in parts": {"most": 16},
    "accumulation": {"accumulated": 2},
    "noise schedule": {"scheduler": lambda one: schedulers.ExponentialNoise(one, gamma=0.99)},
    "clipping schedule": {"scheduler": lambda one: schedulers.ExponentialGradClip(one, gamma=0.99)},
    "empty batches": {"expected": 2},
    "frozen weights": {"frozen": True},
    "two groups": {"groups": True},
    "bfloat16": {"dtype": torch.bfloat16},
    "noise not tested": {"test_noise": False},
    "ten canaries": {"canaries": 10},
}


def training(
    seed,
    adjacency,
    *,
    clipping="flat",
    optimizer=torch.optim.SGD,
    most=None,
    accumulated=1,
    scheduler=None,
    expected=40,
    frozen=False,
    groups=False,
    dtype=torch.float32,
    test_noise=True,
    canaries=1,
):
    """A correct training under audit, until it is refuted or ends."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 2).to(dtype)
    if frozen:
        model.bias.requires_grad_(False)
    x = torch.randn(RECORDS, 8).to(dtype)
    y = (x[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=expected)
    given = [p for p in model.parameters() if p.requires_grad]
    if groups:
        given = [{"params": [p], "lr": 0.1 * i} for i, p in enumerate(given)]
    criterion = torch.nn.CrossEntropyLoss()
    how = {"clipping": clipping}
    if clipping == "ghost":
        how = {"grad_sample_mode": "ghost", "criterion": criterion}
    bounds = [0.5**0.5] * 2 if clipping == "per_layer" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, private, *own, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer(given, lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=bounds,
            poisson_sampling=accumulated == 1,  # Opacus refuses the other
            **how,
        )
        criterion = own[0] if own else criterion
        auditor = audit_optimizer(
            private, delta=DELTA, adjacency=adjacency, alpha=ALPHA, test_noise=test_noise, canaries=canaries, seed=seed
        )
        changing = [scheduler(private)] if scheduler else []
        while True:
            parts = nullcontext(loader)
            if most:
                parts = BatchMemoryManager(data_loader=loader, max_physical_batch_size=most, optimizer=private)
            with parts as batches:
                for i, (some, labels) in enumerate(batches):
                    criterion(model(some.to(dtype)), labels).backward()
                    if (i + 1) % accumulated:
                        continue
                    private.step()
                    private.zero_grad()
                    for one in changing:
                        one.step()
                    if auditor.steps == STEPS or auditor.refuted:
                        return auditor.report()


def measured(cell):
    """Of how many trainings something was said that is not so: a row."""
    reports = [training(seed, cell["adjacency"], **KINDS[cell["kind"]]) for seed in range(TRAININGS)]
    said = {"refuted": sum(report.refuted for report in reports)}
    said["clipping"] = sum(report.clipping is not None for report in reports)
    return [{"trainings": TRAININGS, "steps": STEPS} | said]


if __name__ == "__main__":
    torch.set_num_threads(1)
    continued(sys.argv[1], ("kind", "adjacency"), product(KINDS, ADJACENCIES), measured)
