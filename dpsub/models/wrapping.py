"""From a `torch.nn.Module` to a bank of it, which is compared with plain loops over models and records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from traceback import format_exc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsub._core import checks
from dpsub.data.tasks import Task, check_task
from dpsub.models.differentiation import Masked, draw, masked, switch
from dpsub.models.interface import Losses, cross_entropy
from dpsub.models.mkl_kernels import begin_computing
from dpsub.models.modules import FromRecords, ModuleBank

CHECKED_RECORDS = 8  # that a module is checked with
SAME = 1e-3  # relative: what is computed in two ways
MOST_REASON = 300  # characters
SAME_CALL = 1e-5  # relative: what is computed twice in the same way
NO_BRANCHES = (
    "an `if`, `in` or `.item()` on numbers that differ from record to record: use torch.where; models of transformers "
    "do without if they are given an attention_mask and attn_implementation='eager'"
)
PACKED = "packed sequences, whose lengths are read from the batch: pad sequences instead of packing them"
OF_DICTS = (
    "; if it takes arguments by name or returns a dict, give inputs, such as inputs=lambda x: {'input_ids': x.long()}; "
    "if its one argument is a dict, inputs=lambda x: {'batch': {'input_ids': x.long()}}, with that argument's name"
)
BY_VMAP = "module must be one that torch.func.vmap can differentiate record by record"
UNDER_VMAP = (
    "module must be one that torch.func.vmap computes as torch does without it (write what mixes models or records in "
    "another way), got one whose"
)
STARTS = "start must be 'own', 'fresh' if all layers have reset_parameters, or a function that makes a module"


def from_module(
    module: nn.Module,
    task: Task,
    *,
    inputs: Callable[[Tensor], Mapping[str, Any]] | None = None,
    start: str | Callable[[], nn.Module] = "own",
    loss: Losses | None = None,
    name: str | None = None,
) -> ModuleBank:
    r"""A bank of any module that can be differentiated record by record.

    Parameters that require a gradient are trained, clipped and noised. All others, and buffers, stay as they are, so
    heads, adapters and frozen backbones can be written as usual; frozen batch norm must be in eval mode, and stays
    in it. Layers that Opacus knows how to replace (batch norm, `nn.LSTM`, `nn.MultiheadAttention`) are refused in
    Opacus's words; `opacus.validators.ModuleValidator.fix` replaces them. Dropout is drawn for each model from its
    bank's stream. Scores, accuracy and canaries' own gradients are computed without it. Gradients are PyTorch's: that
    of an embedding's `padding_idx` is 0, where Opacus 1.6 computes one. A module must do the same for every record: an
    `if` on a record's numbers is refused. Models of transformers, such as GPT-2, ask whether records are padded, unless
    they have `attn_implementation="eager"` and are given an `attention_mask`.

    The module and its loss are compared with plain loops over a few models and records, both as it trains and as it is
    evaluated.

    Args:
        module: takes records (n, *shape of the task's) as float32 and returns outputs (n, num_classes). It is copied.
        task: the task; its shape and number of classes are checked.
        start: "own": all models start from the module's parameters. "fresh": each model draws its own, by its layers'
            `reset_parameters`. Or a function without arguments that makes a new module, whose parameters are taken.
        inputs: for a module that takes other arguments than records: from records (n, …) float32 to its arguments by
            name, as `lambda x: {"input_ids": x.long()}`. If the module then returns a dict, its "logits" are the
            outputs.
        loss: from outputs (n, num_classes) and labels (n,) to losses (n,). By default cross-entropy.
        name: what the bank is called in results; by default the module's class. Stores tell banks apart by it and by
            a checksum of what module, loss and start hold and of their code: numbers, texts, tensors, objects of these,
            hooks, the source of functions and classes of yours, and the globals that it names. Libraries are told by
            the names of what is used of them. What cannot be told apart, such as a lambda, or code without a source, is
            refused by stores unless you give a name, and then answer for it. After you edit a file, import it anew:
            its source is read from the file.

    Returns:
        A bank, which `audit` and the crafters take as they take `mlp(task)`.

    Raises:
        ValueError: if the module has no trainable parameter, cannot be copied or differentiated record by record, mixes
            records in either mode, draws randomness outside `nn.Dropout`, or does not fit the task; if the loss is not
            one finite number of each record by itself.

    >>> from torch import nn
    >>> from dpsub import data, models
    >>> task = data.digits(n_train=100)
    >>> models.from_module(nn.Sequential(nn.Linear(55, 8), nn.LayerNorm(8), nn.Linear(8, 10)), task).parameters
    554
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got a {type(module).__name__}")
    check_task(task)
    if start not in ("own", "fresh") and not callable(start):
        raise ValueError(f"{STARTS}, got {start!r}")
    begin_computing()
    with _refused("module must be one that copy.deepcopy can copy (torch.nn.utils.parametrizations has a weight_norm)"):
        template = switch(copy.deepcopy(module if inputs is None else FromRecords(module, inputs)), True)
    _check_parameters(template)
    _check_layers(template)
    known_as = type(module).__name__ if name is None else checks.text("name", name)
    bank = ModuleBank(
        name=known_as if loss is None else f"{known_as} by {getattr(loss, '__qualname__', type(loss).__name__)}",
        input_shape=task.x_train.shape[1:],
        classes=task.num_classes,
        template=template,
        losses=cross_entropy if loss is None else loss,
        start=None if start == "own" else start,
        named=name is not None,
    )
    records = np.resize(np.arange(len(task.y_train)), CHECKED_RECORDS)
    x, y = torch.tensor(task.x_train[records]), torch.tensor(task.y_train[records])
    with _refused(STARTS):
        bank.initial_parameters(2, torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):  # a module that draws randomness does so until it is refused
        _check_outputs(bank, x, y)
        kept = _kept(bank.module(), x[:1])
        if narrow := {value.dtype for value in kept} & {torch.bfloat16, torch.float16}:
            raise ValueError(f"module must compute in float32, got rounding to {narrow.pop()}: leave autocast out")
        bank = replace(bank, activations=sum(value.numel() for value in kept))
        _check_records_apart(bank, x, y)
    return bank


def _kept(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What a forward pass keeps for the backward pass, its parameters left out."""
    own, kept = {value.data_ptr() for value in module.parameters()}, list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):  # type: ignore[arg-type, return-value]
        module(x)
    return [value for value in kept if value.data_ptr() not in own]


def _check_parameters(module: nn.Module) -> None:
    if any(map(nn.parameter.is_lazy, module.parameters())):
        raise ValueError("module must have no lazy layer: call it once, with records of the task's shape")
    trained = [value for value in module.parameters() if value.requires_grad]
    if not trained:
        raise ValueError("module must have a parameter that requires a gradient, got none: nothing would be trained")
    for value in trained:
        if value.dtype != torch.float32 or value.device.type != "cpu":
            of_complex = "torch.view_as_real(weight) as a parameter, and torch.view_as_complex of it in forward"
            raise ValueError(
                f"module must have float32 parameters on the CPU, got {value.dtype} on {value.device}: use "
                f"{of_complex if value.is_complex() else 'module.float().cpu()'}"
            )


def _check_layers(module: nn.Module) -> None:
    from opacus.validators import ModuleValidator  # its import takes as long as all of dpsub.models

    if errors := ModuleValidator.validate(module, strict=False):
        reasons = "".join(f"\n  {error}" for error in errors)
        raise ValueError(
            f"module must be one that Opacus can differentiate record by record, got one of which it says:{reasons}\n"
            "opacus.validators.ModuleValidator.fix(module) replaces such layers"
        )
    for path, layer in module.named_modules():  # Opacus lets it pass if it is not trained, but it mixes records
        if isinstance(layer, _BatchNorm) and layer.training:
            raise ValueError(f"module must have frozen batch norm in eval mode: call .eval() on its layer {path}")


def _check_outputs(bank: ModuleBank, x: Tensor, y: Tensor) -> None:
    for training in (True, False):
        module = _module(bank, None, training)[0]
        for records in (x[:2], x[:1], x):
            with torch.no_grad(), _refused(f"module must take records {tuple(records.shape)}", OF_DICTS):
                outputs = module(records)
            mode = "training" if training else "eval"
            _check_shape(f"module must return outputs in {mode} mode", outputs, (len(records), bank.classes))
    with _refused(f"loss must take outputs (2, {bank.classes}) and labels (2,)"):
        losses = bank.losses(outputs[:2], y[:2])
    _check_shape("loss must not be reduced, but return one number a record", losses, (2,))


def _check_shape(expected: str, value: object, shape: tuple[int, ...]) -> None:
    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ + OF_DICTS * isinstance(value, dict)
    if got != shape:
        raise ValueError(f"{expected}, {shape}, got {got}")


def _check_records_apart(bank: ModuleBank, x: Tensor, y: Tensor) -> None:
    """Check in both modes that neither records nor models see each other, against plain loops over both.

    Some banks have as many models as records: an operation that confuses these then raises no error.
    """
    theta = bank.initial_parameters(3, torch.Generator().manual_seed(0))
    draws = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    theta = torch.where(theta == 0, 0.01 * draws, theta * (1 + 0.1 * draws.tanh()))  # three models, near the start
    outputs = torch.stack([bank.module(parameters)(x).detach() for parameters in theta])
    _check_loss(bank, outputs.flatten(0, 1), y.repeat(3))
    for training in (True, False):
        _check_alone(bank, theta[0], x, y, training)
    for training, models in ((True, 2), (False, 2), (False, 3)):
        _check_side_by_side(bank, theta[:models], x[:2], y[:2], training)
    with _refused(BY_VMAP):
        logits = bank.logits(theta, x).permute(2, 0, 1)
    _check_same(logits, outputs, f"{UNDER_VMAP} outputs of 3 models are off")
    start = bank.initial_parameters(1, torch.Generator().manual_seed(0))
    norms, losses = bank.gradient_norms(start, x, y)[:, 0], bank.losses(bank.logits(start, x)[..., 0], y)
    if bad := int((~torch.isfinite(norms + losses)).sum()):
        raise ValueError(
            f"loss must be finite, with a finite gradient, where training starts, got {bad} of {len(y)} records "
            "where it is not: start elsewhere, or take logarithms as torch.log_softmax does"
        )


def _check_alone(bank: ModuleBank, theta: Tensor, x: Tensor, y: Tensor, training: bool) -> None:
    """Check that a record's outputs and gradients are the same in a batch."""
    module, mode = _module(bank, theta, training)[0], "training" if training else "eval"
    with _refused(f"module must be one that torch can differentiate in {mode} mode"):
        (outputs, gradient), (again, _) = (_gradient(module, bank, x, y) for _ in range(2))
    message = (
        "module must draw randomness in nn.Dropout layers only, so that each model has its own stream, and keep no "
        f"state, got one whose outputs in {mode} mode change from call to call"
    )
    _check_same(again, outputs, message, SAME_CALL)
    alone = [_gradient(module, bank, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    expected = torch.cat([output for output, _ in alone]), torch.stack([own for _, own in alone]).sum(dim=0)
    for what, together, apart in zip(("outputs", "gradients"), (outputs, gradient), expected, strict=True):
        message = (
            "module must treat each record by itself, since clipping does not bound what one does to another, got one "
            f"whose {what} in {mode} mode, with {len(y)} records in one batch, change"
        )
        _check_same(together, apart, message)


def _check_loss(bank: ModuleBank, outputs: Tensor, labels: Tensor) -> None:
    """Check that a record's loss and its slope are the same in a batch."""

    def losses_and_slopes(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = outputs.clone().requires_grad_()
        losses = bank.losses(outputs, labels)
        return losses.detach(), torch.autograd.grad(losses.sum(), outputs)[0]

    with _refused(f"loss must be differentiable by the outputs of one record or {len(labels)}"):
        together = losses_and_slopes(outputs, labels)
        alone = [losses_and_slopes(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
    message = f"loss must be of each record by itself, got one that, with {len(labels)} records in one batch, changes"
    for found, expected in zip(together, map(torch.cat, zip(*alone, strict=True)), strict=True):
        _check_same(found, expected, message)


def _check_side_by_side(bank: ModuleBank, theta: Tensor, x: Tensor, y: Tensor, training: bool) -> None:
    """Check that gradients are those of a loop over models and records."""
    mode, lead = "training" if training else "eval", (len(theta), len(y))
    layouts, gradients = [(x, y)], []
    if training:  # each model may have its own batch
        layouts.append((x.expand(*lead, *x.shape[1:]), y.expand(lead)))
    with _refused(BY_VMAP):
        for layout in layouts:
            own = bank.training(torch.Generator().manual_seed(0)) if training else bank
            gradients.append(torch.cat(own.by_parameter(theta, *layout), dim=2))
    masks = draw(own._net[1], lead, torch.Generator().manual_seed(0), theta)
    for i, parameters in enumerate(theta):
        module, dropouts = _module(bank, parameters, training)
        for layer, of_layer in zip(dropouts, masks, strict=True):
            layer.masks = iter([mask[i, j] for j in range(len(y)) for mask in of_layer])
        expected = torch.stack([_gradient(module, bank, x[j : j + 1], y[j : j + 1])[1] for j in range(len(y))])
        for of_layout in gradients:
            _check_same(of_layout[i], expected, f"{UNDER_VMAP} gradients of {len(theta)} models in {mode} mode are off")


@contextmanager
def _refused(expected: str, hint: str = "") -> Iterator[None]:
    """Whatever goes wrong in the user's code, in a sentence."""
    try:
        yield
    except Exception as error:
        reason = " ".join((str(error) or repr(error)).split())[:MOST_REASON]
        if "data-dependent control flow" in reason:  # torch's words
            reason = PACKED if "dp_rnn.py" in format_exc() else NO_BRANCHES
        raise ValueError(f"{expected}, got from it: {reason}{hint}") from error


def _module(bank: ModuleBank, theta: Tensor | None, training: bool) -> tuple[nn.Module, list[Masked]]:
    """One model as it trains or is evaluated, and the layers that wait for dropout masks."""
    module = bank.module(theta, training=training)
    return module, masked(module) if training else []


def _gradient(module: nn.Module, bank: ModuleBank, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs, and (parameters,) the gradient of the sum of the records' losses, by autograd alone."""
    outputs = module(x)
    trained = [value for value in module.parameters() if value.requires_grad]
    parts = torch.autograd.grad(bank.losses(outputs, y).sum(), trained, materialize_grads=True)
    return outputs.detach(), torch.cat([part.to_dense().flatten() for part in parts])


def _check_same(found: Tensor, expected: Tensor, message: str, same: float = SAME) -> None:
    """Check that two computations agree but for rounding, relative to the largest number."""
    largest = float(torch.stack([found, expected]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    if not torch.allclose(found, expected, rtol=same, atol=same * largest, equal_nan=True):
        change = 100 * float((found - expected).abs().max()) / (largest or 1.0)
        raise ValueError(f"{message} by {change:.1f} % (so does rounding below float32: leave autocast out)")
