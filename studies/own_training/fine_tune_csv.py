"""Fine-tune a language model on a CSV by LoRA and DP-SGD, and audit it.

    python fine_tune_csv.py reviews.csv gpt2

The CSV has the columns `text` and `label`; labels are words or numbers. The
model is a name on the Hugging Face hub, or a folder.
"""

import sys

import pandas as pd
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dpsub.opacus import audit_optimizer, privacy_statement

DELTA, EPOCHS, BATCH, AT_ONCE, LENGTH = 1e-5, 3, 256, 8, 64


def fine_tune(csv, name, layers, *, noise_multiplier=1.0):
    """The model, the audit's report, and what the training states."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    table = pd.read_csv(csv)
    labels, names = pd.factorize(table["label"], sort=True)
    read = tokenizer(
        list(table["text"]),
        padding="max_length",
        truncation=True,
        max_length=LENGTH,
        return_tensors="pt",
    )
    records = TensorDataset(
        read["input_ids"],
        read["attention_mask"],
        torch.from_numpy(labels),
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        num_labels=len(names),
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    lora = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=layers)
    model = get_peft_model(model, lora).train()
    trained = [one for one in model.parameters() if one.requires_grad]
    start = [one.detach().clone() for one in trained]

    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.AdamW(trained, lr=1e-3),
        data_loader=DataLoader(
            records, batch_size=min(BATCH, len(records))
        ),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
    )
    auditor = audit_optimizer(
        optimizer, delta=DELTA, adjacency="substitute"
    )
    for _ in range(EPOCHS):
        with BatchMemoryManager(
            data_loader=loader,
            max_physical_batch_size=AT_ONCE,
            optimizer=optimizer,
        ) as parts:
            for tokens, mask, labels in parts:
                optimizer.zero_grad()
                seen = model(input_ids=tokens, attention_mask=mask)
                loss = torch.nn.functional.cross_entropy(
                    seen.logits, labels
                )
                loss.backward()
                optimizer.step()
    for one, before in zip(trained, start, strict=True):
        if torch.equal(one.detach(), before):
            raise RuntimeError("an adapter has not moved at all")
    statement = privacy_statement(engine, delta=DELTA, data_loader=loader)
    return model, auditor.report(), statement


if __name__ == "__main__":
    csv, name = sys.argv[1:]
    layers = ["c_attn"] if "gpt2" in name else ["q_proj", "v_proj"]
    _, report, statement = fine_tune(csv, name, layers)
    print(report, statement, sep="\n\n")
