"""What a bank of a module computes, against plain loops over models and records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpsub.models.dropout import Masked, draw, masked
from dpsub.models.modules import ModuleBank

SAME = 1e-3  # relative: what is computed in two ways
SAME_CALL = 1e-5  # relative: what is computed twice in the same way
BY_VMAP = "module must be one that torch.func.vmap can differentiate record by record"


def check_outputs(bank: ModuleBank, x: Tensor, y: Tensor) -> None:
    for training in (True, False):
        module = _module(bank, None, training)[0]
        for taken in (x[:2], x[:1], x):
            with torch.no_grad(), refused(f"module must take records {tuple(taken.shape)}"):
                outputs = module(taken)
            if not isinstance(outputs, Tensor) or outputs.shape != (len(taken), bank.classes):
                got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
                raise ValueError(
                    f"module must return outputs ({len(taken)}, {bank.classes}), a number for each record and class of "
                    f"the task, got {got}{' in training mode' * training}"
                )
    with refused(f"loss must take outputs (2, {bank.classes}) and labels (2,)"):
        losses = bank.losses(outputs[:2], y[:2])
    if not isinstance(losses, Tensor) or losses.shape != (2,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"loss must return one number a record, (2,), got {got}: do not reduce it")


def check_records_apart(bank: ModuleBank, x: Tensor, y: Tensor) -> None:
    """Check in both modes that neither records nor models see each other, against plain loops over both.

    Some banks have as many models as records: an operation that confuses these then raises no error.
    """
    theta = bank.initial_parameters(3, torch.Generator().manual_seed(0))
    draws = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    theta = torch.where(theta == 0, 0.01 * draws, theta * (1 + 0.1 * draws.tanh()))  # three models, near the start
    outputs = torch.stack([bank.module(own)(x).detach() for own in theta])
    _check_loss(bank, outputs.flatten(0, 1), y.repeat(3))
    for training in (True, False):
        _check_alone(bank, theta[0], x, y, training)
    for training, models in ((True, 2), (False, 2), (False, 3)):
        _check_side_by_side(bank, theta[:models], x[:2], y[:2], training)
    with refused(BY_VMAP):
        found = bank.logits(theta, x).permute(2, 0, 1)
    _check_same(found, outputs, "outputs of 3 models")
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
    with torch.no_grad():
        again = module(x)
    with refused(f"module must be one that torch can differentiate in {mode} mode"):
        outputs, gradient = _gradient(module, bank, x, y)
    if _apart(again, outputs, SAME_CALL):
        raise ValueError(
            "module must draw randomness in nn.Dropout layers only, so that each model has its own stream, and keep no "
            f"state, got one whose outputs change from call to call in {mode} mode"
        )
    each = [_gradient(module, bank, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    alone = torch.cat([one for one, _ in each]), torch.stack([one for _, one in each]).sum(dim=0)
    for what, one, other in zip(("outputs", "gradients"), (outputs, gradient), alone, strict=True):
        if apart := _apart(one, other):
            raise ValueError(
                f"module must treat each record by itself, got one whose {what} in {mode} mode change by "
                f"{100 * apart:.1f} % when {len(y)} records are in one batch: no clipping of records bounds what one "
                "does"
            )


def _check_loss(bank: ModuleBank, outputs: Tensor, labels: Tensor) -> None:
    """Check that a record's loss and its slope are the same in a batch."""

    def both(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        outputs = outputs.clone().requires_grad_()
        losses = bank.losses(outputs, labels)
        return losses.detach(), torch.autograd.grad(losses.sum(), outputs)[0]

    with refused(f"loss must be differentiable by the outputs of one record or {len(labels)}"):
        together = both(outputs, labels)
        alone = [both(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
    for one, other in zip(together, map(torch.cat, zip(*alone, strict=True)), strict=True):
        if apart := _apart(one, other):
            raise ValueError(
                f"loss must be of each record by itself, got one that changes by {100 * apart:.1f} % when "
                f"{len(labels)} records are in one batch"
            )


def _check_side_by_side(bank: ModuleBank, theta: Tensor, x: Tensor, y: Tensor, training: bool) -> None:
    """Check that gradients are those of a loop over models and records."""
    mode, lead = "training" if training else "eval", (len(theta), len(y))
    layouts, found = [(x, y)], []
    if training:  # each model may have its own batch
        layouts.append((x.expand(*lead, *x.shape[1:]), y.expand(lead)))
    with refused(BY_VMAP):
        for layout in layouts:
            own = bank.training(torch.Generator().manual_seed(0)) if training else bank
            found.append(torch.cat(own._gradients(theta, *layout), dim=2))
    masks = draw(own._dropouts, lead, torch.Generator().manual_seed(0), theta)
    for i, parameters in enumerate(theta):
        module, dropouts = _module(bank, parameters, training)
        for layer, of_layer in zip(dropouts, masks, strict=True):
            layer.masks = iter([mask[i, j] for j in range(len(y)) for mask in of_layer])
        expected = torch.stack([_gradient(module, bank, x[j : j + 1], y[j : j + 1])[1] for j in range(len(y))])
        for one in found:
            _check_same(one[i], expected, f"gradients of {len(theta)} models in {mode} mode")


@contextmanager
def refused(expected: str) -> Iterator[None]:
    """Whatever goes wrong in the user's code, in a sentence."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{expected}, got from it: {(str(error) or repr(error)).partition(chr(10))[0]}") from error


def _check_same(found: Tensor, expected: Tensor, what: str) -> None:
    if apart := _apart(found, expected):
        raise ValueError(
            "module must be one that torch.func.vmap computes as torch does without it, got one whose "
            f"{what} are off by {100 * apart:.1f} %: write the operation that mixes models or records with others"
        )


def _module(bank: ModuleBank, theta: Tensor | None, training: bool) -> tuple[nn.Module, list[Masked]]:
    """One model as it trains or is evaluated, and the layers that wait for dropout masks."""
    module = bank.module(theta).train(training)
    return module, masked(module) if training else []


def _gradient(module: nn.Module, bank: ModuleBank, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs, and (parameters,) the gradient of the sum of the records' losses, by autograd alone."""
    outputs = module(x)
    trained = [one for one in module.parameters() if one.requires_grad]
    parts = torch.autograd.grad(bank.losses(outputs, y).sum(), trained, materialize_grads=True)
    return outputs.detach(), torch.cat([part.to_dense().flatten() for part in parts])


def _apart(found: Tensor, expected: Tensor, same: float = SAME) -> float:
    """By how much they differ, as a part of the largest number; 0 if by no more than rounding."""
    largest = float(torch.stack([found, expected]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    if torch.allclose(found, expected, rtol=same, atol=same * largest, equal_nan=True):
        return 0.0
    return float((found - expected).abs().max()) / (largest or 1.0)
