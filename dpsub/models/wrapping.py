"""From a `torch.nn.Module` to a bank of it, with what can be checked before any training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpsub._core import checks
from dpsub.data import Task, check_task
from dpsub.models.acceptance import check_outputs, check_records_apart, refused
from dpsub.models.interface import Losses, cross_entropy
from dpsub.models.kernels import begin_computing
from dpsub.models.modules import ModuleBank

RECORDS = 8  # that a module is checked with


def from_module(
    module: nn.Module,
    task: Task,
    *,
    start: str | Callable[[], nn.Module] = "own",
    loss: Losses | None = None,
    name: str | None = None,
) -> ModuleBank:
    r"""A bank of any module that can be differentiated record by record.

    Parameters that require a gradient are trained, clipped and noised. All others, and buffers, stay as they are, so
    heads, adapters and frozen backbones can be written as usual. Layers that Opacus knows how to replace (batch norm,
    `nn.LSTM`, `nn.MultiheadAttention`) are refused in Opacus's words; `opacus.validators.ModuleValidator.fix` replaces
    them. Dropout is drawn for each model from its bank's stream. Scores, accuracy and canaries' own gradients are
    computed without it. Gradients are PyTorch's: that of an embedding's `padding_idx` is 0, where Opacus 1.6 computes
    one.

    The module and its loss are compared with plain loops over a few models and records, both as it trains and as it is
    evaluated.

    Args:
        module: takes records (n, *shape of the task's) as float32 and returns outputs (n, num_classes). It is copied.
        task: the task; its shape and number of classes are checked.
        start: "own": all models start from the module's parameters. "fresh": each model draws its own, by its layers'
            `reset_parameters`. Or a function without arguments that makes a new module, whose parameters are taken.
        loss: from outputs (n, num_classes) and labels (n,) to losses (n,). By default cross-entropy.
        name: what the bank is called in results; by default the module's class. Stores tell banks apart by it and by
            all that module, loss and start hold: numbers, texts, tensors, objects of these, hooks, and the globals that
            their code reads. Code itself is told by the name of its function or class alone: give another name when you
            change it. What cannot be told apart, such as a lambda, a closure, or a class inside a function, is refused
            by stores unless you give a name, and then answer for it.

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
    if not (start in ("own", "fresh") if isinstance(start, str) else callable(start)):
        raise ValueError(f"start must be 'own', 'fresh' or a function that makes a module, got {start!r}")
    if loss is not None and not callable(loss):
        raise ValueError(f"loss must be a function of outputs and labels, got {loss!r}")
    begin_computing()
    named, name = name is not None, type(module).__name__ if name is None else checks.text("name", name)
    _check_parameters(module)
    with refused("module must be one that copy.deepcopy can copy (torch.nn.utils.parametrizations has a weight_norm)"):
        module = copy.deepcopy(module).train()
    _check_by_opacus(module)
    bank = ModuleBank(
        name=name if loss is None else f"{name} by {getattr(loss, '__qualname__', type(loss).__name__)}",
        input_shape=task.x_train.shape[1:],
        classes=task.num_classes,
        template=module,
        losses=cross_entropy if loss is None else loss,
        start=None if start == "own" else start,
        named=named,
    )
    records = np.resize(np.arange(len(task.y_train)), RECORDS)
    x, y = torch.tensor(task.x_train[records]), torch.tensor(task.y_train[records])
    _check_start(bank)
    with torch.random.fork_rng(devices=[]):  # a module that draws randomness does so until it is refused
        check_outputs(bank, x, y)
        bank = replace(bank, activations=_activations(bank.module(), x[:1]))
        check_records_apart(bank, x, y)
    return bank


def _activations(module: nn.Module, x: Tensor) -> int:
    """How many numbers a forward pass keeps for the backward pass, its parameters left out."""
    own, kept = {one.data_ptr() for one in module.parameters()}, 0

    def keep(value: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if value.data_ptr() in own else value.numel()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        module(x)
    return kept


def _check_parameters(module: nn.Module) -> None:
    if any(nn.parameter.is_lazy(one) for one in (*module.parameters(), *module.buffers())):
        raise ValueError(
            "module must have parameters of known shapes, got a lazy layer: call the module once, with records of the "
            "task's shape"
        )
    trained = [one for one in module.parameters() if one.requires_grad]
    if not trained:
        raise ValueError("module must have a parameter that requires a gradient, got none: nothing would be trained")
    for one in trained:
        if one.dtype != torch.float32 or one.device.type != "cpu":
            raise ValueError(
                f"module must have float32 parameters on the CPU, got {one.dtype} on {one.device}: "
                "use module.float().cpu()"
            )


def _check_by_opacus(module: nn.Module) -> None:
    from opacus.validators import ModuleValidator  # its import takes as long as all of dpsub.models

    if errors := ModuleValidator.validate(module, strict=False):
        reasons = "".join(f"\n  {error}" for error in errors)
        raise ValueError(
            f"module must be one that Opacus can differentiate record by record, got one of which it says:{reasons}\n"
            "opacus.validators.ModuleValidator.fix(module) replaces such layers"
        )


def _check_start(bank: ModuleBank) -> None:
    generator = torch.Generator().manual_seed(0)
    if bank.start == "fresh":
        for path, layer in bank.template.named_modules():
            own = [one for one in layer.parameters(recurse=False) if one.requires_grad]
            if own and not callable(getattr(layer, "reset_parameters", None)):
                raise ValueError(
                    f"start must be a function that makes a module where layers have no reset_parameters, got 'fresh' "
                    f"for a {type(layer).__name__}{f' ({path})' if path else ''}"
                )
    elif bank.start is not None:
        with refused("start must be a function that makes a module without being given anything"):
            made = bank.start()  # type: ignore[operator]
        expected = {name: value.shape for name, value in bank.template.named_parameters()}
        got = {name: value.shape for name, value in made.named_parameters()} if isinstance(made, nn.Module) else None
        if got != expected:
            raise ValueError(f"start must make modules with the parameters of {bank.name}, got {made!r:.200}")
    if not torch.isfinite(bank.initial_parameters(2, generator)).all():
        raise ValueError("module must start with finite parameters, got some that are not")
