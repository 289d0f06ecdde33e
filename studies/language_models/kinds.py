"""Banks of transformers beside Opacus: equal, and how much faster.

    python -m studies.language_models.kinds studies/language_models/kinds.csv

Each kind of model is compared record by record with Opacus's clipped
gradients, and timed beside an Opacus loop over the models.
"""

import sys
import time
import warnings
from tempfile import TemporaryDirectory

import numpy as np
import torch
from opacus import GradSampleModule
from torch import nn

from dpsub import data, models
from studies.kept import continued
from studies.language_models.models import NextWord, WholeText, adapted, gpt2, minus_log_p

VOCABULARY, LENGTH, RECORDS, MODELS, C = 60, 12, 16, 16, 0.2
LAST = [5, 6, 7, 8]
TIMES = 3


SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64}
SIZE |= {"num_hidden_layers": 2, "num_attention_heads": 2, "attn_implementation": "eager"}


def llama(*, keys=2):
    """A Llama with two layers and tied embeddings.

    With one head for keys and values, both heads for queries share it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZE, num_key_value_heads=keys, pad_token_id=0, tie_word_embeddings=True))


def from_folder(model):
    """The same weights, saved and read as those of a checkpoint are."""
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def bert():
    """A BERT with two layers that fills in words."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(**SIZE, **dropout, max_position_embeddings=LENGTH))


def small_gpt2(**changed):
    """A GPT-2 of the same size; its embeddings are tied."""
    model = gpt2(VOCABULARY, LENGTH, width=32)
    for name, value in changed.items():
        setattr(model.config, name, value)
    return model


def by_peft(model, layers):
    """LoRA as peft puts it in."""
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=list(layers)))


def untied(model):
    """All trained, the output embeddings a matrix of their own."""
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


class Counted(NextWord):
    """Standardised over the batch."""

    def forward(self, x):
        found = super().forward(x)
        return found - found.mean(0)


def next_word(model, **options):
    return NextWord(model, LAST, **options)


KINDS = {
    "GPT-2, all trained, tied": lambda: next_word(small_gpt2()),
    "GPT-2, all trained, untied": lambda: next_word(untied(small_gpt2())),
    "GPT-2, from a folder": lambda: next_word(from_folder(small_gpt2())),
    "GPT-2, own LoRA": lambda: next_word(adapted(small_gpt2())),
    "GPT-2, own LoRA, whole text": lambda: WholeText(adapted(small_gpt2())),
    "GPT-2, peft": lambda: next_word(by_peft(small_gpt2(), ["c_attn"])),
    "BERT, all trained": lambda: next_word(bert(), both_ways=True),
    "BERT, own LoRA": lambda: next_word(adapted(bert(), layers=("query", "value")), both_ways=True),
    "BERT, peft": lambda: next_word(by_peft(bert(), ["query", "value"]), both_ways=True),
    "Llama, all trained, tied": lambda: next_word(llama()),
    "Llama, shared keys": lambda: next_word(llama(keys=1)),
    "Llama, shared keys, peft": lambda: next_word(by_peft(from_folder(llama(keys=1)), ["q_proj", "v_proj"])),
    "Llama, own LoRA": lambda: next_word(adapted(llama(), layers=("q_proj", "v_proj"))),
    "Llama, peft": lambda: next_word(by_peft(llama(), ["q_proj", "v_proj"])),
}
REFUSED = {
    "BERT, mask of two dimensions": lambda: next_word(bert()),
    "fast attention": lambda: next_word(small_gpt2(_attn_implementation="sdpa")),
    "half precision": lambda: next_word(small_gpt2().bfloat16()),
    "records see each other": lambda: Counted(small_gpt2(), LAST),
    "nothing trained": lambda: next_word(small_gpt2().requires_grad_(False)),
}


def task_of(name):
    """Random words, some records shorter than others."""
    draws = np.random.default_rng(0)
    x = draws.integers(1, VOCABULARY, (RECORDS, LENGTH))
    x[::3, :4] = 0
    whole = "whole text" in name
    y = np.zeros(RECORDS, int) if whole else draws.integers(0, 4, RECORDS)
    return data.from_arrays(x, y, num_classes=2 if whole else 4)


def clipped(each):
    """Gradients (records, parameters), clipped as Opacus clips them."""
    norms = each.norm(dim=1, keepdim=True)
    return each * (C / (norms + 1e-6)).clamp(max=1)


def by_record(module, x, y):
    """Clipped gradients by a loop over records, without Opacus."""
    trained, found = [one for one in module.parameters() if one.requires_grad], []
    for i in range(len(x)):
        loss = minus_log_p(module(x[i, None]), y[i, None])[0]
        own = torch.autograd.grad(loss, trained, materialize_grads=True)
        found.append(torch.cat([one.flatten() for one in own]))
    return clipped(torch.stack(found))


def by_opacus(module, x, y):
    """(records, parameters): gradients that Opacus finds, clipped to C."""
    trained = [one for one in module.parameters() if one.requires_grad]
    module.zero_grad()
    for one in trained:
        one.grad_sample = None
    minus_log_p(module(x), y).sum().backward()
    each = torch.cat([one.grad_sample.flatten(1) for one in trained], dim=1)
    return clipped(each)


def fastest(call):
    """The shortest of some times, in ms."""
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - began))
    return min(took)


def compared(make, name):
    """A bank beside Opacus: the largest difference, and times."""
    task = task_of(name)
    bank = models.from_module(make(), task, loss=minus_log_p)
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    draws = torch.Generator().manual_seed(0)
    theta = bank.initial_parameters(MODELS, draws)
    theta += 0.05 * torch.randn(theta.shape, generator=draws)
    found = torch.stack([bank.clipped_sum(theta, x[i, None], y[i, None], None, C) for i in range(len(x))])[:, 0]
    wrapped = GradSampleModule(bank.module(theta[0]).train(), loss_reduction="sum")
    row = {"parameters": bank.parameters}
    bank_ms = fastest(lambda: bank.clipped_sum(theta, x, y, None, C)) / MODELS
    try:
        expected = by_opacus(wrapped, x, y)
        row["opacus_ms"] = round(fastest(lambda: by_opacus(wrapped, x, y)), 2)
    except Exception as error:  # whatever Opacus cannot do
        expected = by_record(bank.module(theta[0]), x, y)
        row["message"] = f"Opacus: {error}".partition("\n")[0]
    row["difference"] = float((found - expected).abs().max()) / C
    return row | {"bank_ms": round(bank_ms, 2)}


def measured(cell):
    """A row: a comparison, or the message that refuses the kind."""
    name = cell["kind"]
    warnings.filterwarnings("ignore")
    if name in KINDS:
        return [compared(KINDS[name], name)]
    try:
        made = REFUSED[name]()
        models.from_module(made, task_of(name), loss=minus_log_p)
    except ValueError as error:
        return [{"message": str(error).partition("\n")[0]}]
    raise AssertionError(f"{name} is not refused")


COLUMNS = ("parameters", "difference", "bank_ms", "opacus_ms", "message")

if __name__ == "__main__":
    torch.set_num_threads(1)
    about = f"{MODELS} models, {RECORDS} records of {LENGTH} words, one thread of a shared machine"
    cells = [(name,) for name in (*KINDS, *REFUSED)]
    continued(sys.argv[1], ("kind",), cells, measured, columns=COLUMNS, about=about)
