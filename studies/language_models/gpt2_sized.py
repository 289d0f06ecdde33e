"""What `audit_optimizer` costs on a model of GPT-2's size, with LoRA.

    python -m studies.language_models.gpt2_sized studies/language_models/gpt2_sized.csv

Random weights and records; AdamW, and batches in parts, as in practice.
"""

import sys
import time
import warnings

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsub.opacus import audit_optimizer
from studies.kept import continued
from studies.language_models.models import adapted

RECORDS, LENGTH, BATCH, AT_ONCE, STEPS = 64, 24, 16, 8, 3


def measured(cell):
    """A few steps: their seconds, how far adapters move, the verdict."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    config = GPT2Config(num_labels=2, pad_token_id=50256, attn_implementation="eager")
    model = adapted(GPT2ForSequenceClassification(config), rank=8)
    model.score.requires_grad_(True)
    trained = [one for one in model.parameters() if one.requires_grad]
    start = [one.detach().clone() for one in trained]
    x = torch.randint(50256, (RECORDS, LENGTH))
    records = TensorDataset(x, torch.randint(2, (RECORDS,)))
    row = {
        "parameters": sum(one.numel() for one in model.parameters()),
        "trained": sum(one.numel() for one in trained),
        "batch": BATCH,
    }
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.AdamW(trained, lr=1e-3),
        data_loader=DataLoader(records, batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    auditor = audit_optimizer(optimizer, delta=1e-5, adjacency="substitute") if cell["audited"] else None
    steps, began = 0, time.perf_counter()
    while steps < STEPS:
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=AT_ONCE, optimizer=optimizer) as parts:
            for tokens, labels in parts:
                mask = torch.ones_like(tokens)
                seen = model(input_ids=tokens, attention_mask=mask).logits
                nn.functional.cross_entropy(seen, labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps += not optimizer._is_last_step_skipped
                if steps == STEPS:
                    break
    row["seconds_a_step"] = round((time.perf_counter() - began) / STEPS, 1)
    moved = [float((one.detach() - before).norm()) for one, before in zip(trained, start, strict=True)]
    row["least_moved"] = round(min(moved), 3)
    row["refuted"] = auditor.report().refuted if auditor else None
    return [row]


if __name__ == "__main__":
    about = (
        f"GPT-2's size, LoRA of rank 8 and a head, batches of {BATCH} records of {LENGTH} tokens; on a shared machine"
    )
    continued(sys.argv[1], ("audited",), [(True,), (False,)], measured, about=about)
