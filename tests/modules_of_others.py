"""Modules as users write them, for records of 8 × 8 numbers: of layers that banks of dpsub's own do not have."""

import torch
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.attend = DPMultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(6, 10)

    def forward(self, x):
        rows = self.embed(x)
        seen, _ = self.attend(rows, rows, rows)
        return self.out(self.drop(self.norm(rows + self.drop(seen)).mean(dim=1)))


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.read = layer(3, 4, batch_first=True)
        self.out = nn.Linear(4, 10)

    def forward(self, x):
        words = (x[:, 0] * 5).long().clamp(0, 4)
        return self.out(self.read(self.embed(words))[0][:, -1])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        inner = torch.tanh(self.norm(self.first(x[:, None])))
        inner = inner + torch.tanh(self.second(inner))
        return self.out(nn.functional.avg_pool2d(inner, 4).flatten(1))


MODULES = {
    "attention": Attention,
    "lstm": lambda: Recurrent(DPLSTM),
    "gru": lambda: Recurrent(DPGRU),
    "residual": Residual,
}


class Around(nn.Module):
    """Layers between two linear ones, on what the first makes of a record: of a shape of 64 numbers in all."""

    def __init__(self, *layers, shape=(64,)):
        super().__init__()
        self.first, self.layers, self.shape = nn.Linear(64, 64), nn.Sequential(*layers), shape
        with torch.no_grad():
            self.out = nn.Linear(self.layers(torch.rand(1, *shape)).numel(), 10)

    def forward(self, x):
        inner = self.first(x.flatten(1)).view(-1, *self.shape)
        return self.out(self.layers(inner).flatten(1))


class Function(nn.Module):
    """A function as a layer; of the inputs and of whether it trains if `modes`."""

    def __init__(self, way, modes=False):
        super().__init__()
        self.way, self.modes = way, modes

    def forward(self, x):
        return self.way(x, self.training) if self.modes else self.way(x)


class Sign(torch.autograd.Function):
    """Whose gradient is not that of what it computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope):
        return slope * (ctx.saved_tensors[0].abs() < 1)


class Words(nn.Module):
    """An embedding of the first eight numbers as one of five words each."""

    def __init__(self, embedding, width):
        super().__init__()
        self.embed, self.out = embedding, nn.Linear(width, 10)

    def forward(self, x):
        words = (x.flatten(1)[:, :8] * 5).long().clamp(0, 4)
        return self.out(self.embed(words).flatten(1))


class FastAttention(nn.Module):
    """By torch's fused attention, of two heads, as Hugging Face writes it: a dropout layer holds the rate alone."""

    def __init__(self, dropout=0.0, **options):
        super().__init__()
        self.embed, self.out, self.options = nn.Linear(8, 24), nn.Linear(8, 10), options
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        parts = self.embed(x.view(-1, 8, 8)).view(-1, 8, 2, 12).transpose(1, 2).chunk(3, dim=-1)
        rate = self.drop.p if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(*parts, dropout_p=rate, **self.options)
        return self.out(seen.transpose(1, 2).flatten(2).mean(dim=1))


class Scaled(nn.Module):
    """With a parameter that is a single number, one that is used twice, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.again, self.scale, self.unused = nn.Linear(8, 8), nn.Parameter(torch.tensor(1.5)), nn.Linear(2, 3)
        self.again.weight = self.second.weight

    def forward(self, x):
        inner = torch.tanh(self.second(torch.tanh(self.first(x.flatten(1)))))
        return self.out(self.again(inner) * self.scale)


class LowRank(nn.Module):
    """LoRA: a frozen layer, and a trained product of two thin ones beside it."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


class Constant(nn.Module):
    """Multiplies by float32 numbers that are no buffer, or by a buffer."""

    def __init__(self, buffer):
        super().__init__()
        self.first, self.out = nn.Linear(64, 8), nn.Linear(8, 10)
        numbers = torch.linspace(-1, 1, 64).view(8, 8)
        self.register_buffer("numbers", numbers) if buffer else setattr(self, "numbers", numbers)

    def forward(self, x):
        return self.out(torch.tanh(self.first(x.flatten(1))) @ self.numbers)


def head():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def of_layers(*makers, shape=(64,)):
    return lambda: Around(*(make() for make in makers), shape=shape)


CLASS_WEIGHTS = torch.linspace(0.5, 1.5, 10)


def weighted(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, weight=CLASS_WEIGHTS, reduction="none")


def squares(outputs, labels):
    return (outputs - nn.functional.one_hot(labels, 10)).square().sum(dim=1)


def margins(outputs, labels):
    return nn.functional.multi_margin_loss(outputs, labels, reduction="none")


ROWS, IMAGES = (8, 8), (4, 4, 4)
ACCEPTED = {
    **{name: (make, None) for name, make in MODULES.items()},
    "prelu": (of_layers(nn.PReLU), None),
    "prelu by channel": (of_layers(lambda: nn.PReLU(4), shape=IMAGES), None),
    "activations": (of_layers(nn.ELU, nn.GELU, nn.Softplus, nn.LeakyReLU, nn.Hardsigmoid, nn.GLU), None),
    "in place": (of_layers(lambda: Function(lambda x: x.mul_(2)), lambda: nn.ReLU(inplace=True)), None),
    "convolution 2d": (of_layers(lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), shape=IMAGES), None),
    "pooling": (of_layers(lambda: nn.MaxPool2d(2), lambda: nn.AdaptiveAvgPool2d(1), shape=IMAGES), None),
    "group norm": (of_layers(lambda: nn.GroupNorm(2, 4), lambda: nn.LocalResponseNorm(2), shape=IMAGES), None),
    "weight norm": (of_layers(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 8))), None),
    "linear algebra": (
        of_layers(lambda: Function(lambda x: torch.linalg.solve(x + 9 * torch.eye(8), x.cumsum(1))), shape=ROWS),
        None,
    ),
    "distances": (of_layers(lambda: Function(lambda x: torch.cdist(x, x + 1)), shape=ROWS), None),
    "gradient of one's own": (of_layers(lambda: Function(Sign.apply)), None),
    "fused attention": (FastAttention, None),
    "masked attention": (lambda: FastAttention(attn_mask=torch.ones(8, 8).tril().bool()), None),
    "embedding": (lambda: Words(nn.Embedding(5, 3), 24), None),
    "embedding with padding": (lambda: Words(nn.Embedding(5, 3, padding_idx=2), 24), None),
    "bag of words": (lambda: Words(nn.EmbeddingBag(5, 3), 3), None),
    "single numbers": (Scaled, None),
    "LoRA": (of_layers(lambda: LowRank(nn.Linear(64, 16))), None),
    "frozen": (lambda: nn.Sequential(Around(nn.Tanh()).requires_grad_(False), nn.Linear(10, 10)), None),
    "frozen batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(8).requires_grad_(False).eval(), *head()), None),
    "numbers": (lambda: Constant(buffer=False), None),
    "buffer": (lambda: Constant(buffer=True), None),
    "otherwise in training": (of_layers(lambda: Function(lambda x, trains: x * 2 if trains else x, modes=True)), None),
    "weighted loss": (head, weighted),
    "weighted loss object": (head, nn.CrossEntropyLoss(weight=CLASS_WEIGHTS, reduction="none")),
    "squares": (head, squares),
    "margins": (head, margins),
}
"""By name, modules for records of 64 numbers and losses, None for cross-entropy, of which `from_module` makes banks."""
