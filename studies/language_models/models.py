"""Small language models, adapters and texts, as banks and audits take them.

A record is a row of word numbers, padded on the left. Banks hold records
as float32, so the modules here turn them into whole numbers first.
"""

from collections import Counter

import numpy as np
import torch
from torch import nn

from dpsub import audits

PAD, START, UNKNOWN = 0, 1, 2


class Words:
    """A vocabulary of the most frequent whole words of some texts, and
    others to take in any case. Texts are split at spaces.
    """

    def __init__(self, texts, most=10_000, also=()):
        counts = Counter(word for text in texts for word in text.split())
        frequent = [word for word, _ in counts.most_common(most)]
        self.words = ["", "<start>", "<unknown>"]
        self.words += dict.fromkeys([*also, *frequent])
        self.number = {word: i for i, word in enumerate(self.words)}

    def __len__(self):
        return len(self.words)

    def of(self, text):
        return [self.number.get(word, UNKNOWN) for word in text.split()]

    def rows(self, texts, length):
        """(n, length): the last words of each text, after a start."""
        found = np.full((len(texts), length), PAD)
        for row, text in zip(found, texts, strict=True):
            own = [START, *self.of(text)][-length:]
            row[-len(own) :] = own
        return found


def gpt2(vocabulary, length, *, width=64, layers=2, seed=0):
    """GPT-2 from a configuration, with random weights and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=length,
            n_embd=width,
            n_layer=layers,
            n_head=2,
            bos_token_id=START,
            eos_token_id=START,
            pad_token_id=PAD,
            attn_implementation="eager",
            **dropout,
        )
    )


class LoRA(nn.Module):
    """A frozen layer, plus a trained product of two thin matrices."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        shape = base.weight.shape  # GPT-2 has its layers the other way
        inside, outside = shape[::-1] if isinstance(base, nn.Linear) else shape
        self.down = nn.Linear(inside, rank, bias=False)
        self.up = nn.Linear(rank, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(model, *, rank=4, layers=("c_attn",)):
    """The model, frozen, with LoRA on the layers of these names."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in layers:
                setattr(parent, name, LoRA(child, rank))
    return model


class Reads(nn.Module):
    """A model that reads padded rows of word numbers, given as float32.

    With `both_ways` its words see later ones, as BERT's do. Given a mask of
    two dimensions, BERT asks whether there is padding at all, which no bank
    can. It takes one of four, to be added. Options are for each of its calls.
    """

    def __init__(self, model, *, both_ways=False, **options):
        super().__init__()
        self.model, self.both_ways, self.options = model, both_ways, options

    def log_p(self, tokens):
        """(n, length, vocabulary) log-probabilities."""
        mask = (tokens != PAD).long()
        places = (mask.cumsum(1) - 1).clamp(min=0)
        if self.both_ways:
            mask = -1e9 * (1.0 - mask)[:, None, None]
        logits = self.model(input_ids=tokens, attention_mask=mask, position_ids=places, **self.options).logits
        return logits.log_softmax(-1)


class NextWord(Reads):
    """(n, k): the log-probabilities of k words after the last one.

    They are relative to the whole vocabulary, not to the k words.
    """

    def __init__(self, model, candidates, **options):
        super().__init__(model, **options)
        self.register_buffer("candidates", torch.tensor(candidates))

    def forward(self, x):
        return self.log_p(x.long())[:, -1, self.candidates]


class WholeText(Reads):
    """(n, 2): the log-probability of each whole text, and 0.

    All records have the label 0. A text's score then is how much likelier
    it is than the other one. With `mean`, it is averaged over its words.
    """

    def __init__(self, model, *, mean=True, **options):
        super().__init__(model, **options)
        self.mean = mean

    def forward(self, x):
        tokens = x.long()
        log_p = self.log_p(tokens)[:, :-1]
        each = log_p.gather(2, tokens[:, 1:, None])[..., 0]
        read = tokens[:, :-1] != PAD  # the word before is no padding
        total = (each * read).sum(1)
        if self.mean:
            total = total / read.sum(1)
        return torch.stack([total, torch.zeros_like(total)], dim=1)


def door_codes(rooms, seed=0):
    """Texts, one a room, that lack the last word; and its digit."""
    digits = np.random.default_rng(seed).integers(0, 10, len(rooms))
    return [f"the code of room r{room} is" for room in rooms], digits


def minus_log_p(outputs, labels):
    """The loss of both: minus the log-probability of the label."""
    return -outputs.gather(1, labels[:, None])[:, 0]


def trained(module, x, y, *, epochs, batch_size=64, rate=3e-3, seed=0):
    """A module of this file, trained without privacy on public records."""
    torch.manual_seed(seed)
    x, y = torch.tensor(x), torch.tensor(y)
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate)
    steps = epochs * -(-len(x) // batch_size)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            minus_log_p(module(x[batch]), y[batch]).mean().backward()
            optimizer.step()
            slower.step()
    return module


class Exposure(audits.Observer):
    """Exposure of one of k secrets: log2 k − log2 of its rank among them.

    Records are (1, length) the prefix of k candidate words, whose classes are
    `among`, or (k, length) whole texts that differ in the secret.

    Source: Carlini et al. (2019), *The Secret Sharer*, definition 5.
    """

    name = "exposure"
    long_name = "log2 of the secrets, minus log2 of the rank of z's"
    all_coordinates = True

    def __init__(self, records, secret, among=None):
        self.records = np.asarray(records, dtype=np.float32)
        self.secret = int(secret)
        self.among = among

    def watch(self, bank, task, runs):
        return WatchExposure(bank, self)


class WatchExposure(audits.Watch):
    def __init__(self, bank, about):
        self.bank, self.about = bank, about

    def after_step(self):
        about, model = self.about, self.bank.model
        x = model.inputs(torch.tensor(about.records))
        outputs = model.logits(self.bank.theta, x)
        log_p = outputs[:, 0] if len(x) > 1 else outputs[0]
        if about.among is not None:
            log_p = log_p[torch.tensor(about.among)]
        rank = 1 + (log_p > log_p[about.secret]).sum(0)
        return torch.log2(len(log_p) / rank)


class Along(audits.Observer):
    """How far a model went along z's gradient minus z′'s at the start.

    It is a score of an adversary who sees the adapters, and not only what the
    model says: descent on z goes against z's gradient.
    """

    name = "along"
    long_name = "descent along the difference of the two gradients"
    all_coordinates = True

    def watch(self, bank, task, runs):
        return WatchAlong(bank)


class WatchAlong(audits.Watch):
    def __init__(self, bank):
        self.bank, slot = bank, bank.slot
        theta, clip = bank.theta[:1], bank.spec.max_grad_norm
        z, z_prime = (
            bank.model.clipped_sum(theta, slot.inputs[i], slot.labels[i], None, clip) for i in (slice(1), slice(1, 2))
        )
        self.start, self.apart = theta.clone(), z - z_prime

    def after_step(self):
        moved = self.start - self.bank.theta
        return (moved * self.apart).sum(1) / self.apart.norm()
