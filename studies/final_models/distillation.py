"""Surrogates: models that learn what a black box says of trained ones, side by side."""

from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import one_hot

from dpsub._core.random_streams import torch_seed
from dpsub.models.interface import theta_of
from dpsub.trainers import devices
from dpsub.trainers.bank import block_size

# How many bytes autograd keeps at once, for the models and records of one part: what suits a CPU core's cache, and what
# should fill a GPU (not measured). These are constants, because parts of another size round differently.
KEPT = {"cpu": 2**25, "cuda": 2**31}


class Surrogates(NamedTuple):
    """Models that learnt from a box's answers: run i from the answers about model i."""

    weights: np.ndarray  # (runs, parameters) float32
    loss: np.ndarray  # (epochs,) the mean over records and models, taken before each step


class Recipe(NamedTuple):
    """How surrogates are trained, as the arguments of `distilled` say."""

    says: str
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int


def distilled(
    model, answers, x, *, seed, says="logits", epochs=200, batch_size=512, learning_rate=1e-4, start=None, device="auto"
):
    """Train a surrogate of each real model on what a box says of it, without privacy and without its weights.

    The loss of a record is the Kullback-Leibler divergence KL(t ‖ s) of the surrogate's s = softmax(outputs) from the
    target t: softmax(logits), or the probabilities. For labels it is the cross-entropy. Each surrogate minimises the
    mean over a batch by Adam. All see the same batches, in which every record comes once an epoch. Dropout is left out.

    Args:
        model: the surrogates' architecture.
        answers: what the box `says` of each real model for the records x, as `answers_of` returns it.
        seed: of the start, if it is random, and of the batches.
        start: (parameters,) at which all surrogates start; None for the model's own start.

    Source: *Adversarial Sample-Based Approach*, section 5.3; rate, epochs and batches from its code.
    """
    records = np.asarray(x, dtype=np.float32)
    targets = np.asarray(answers, dtype=np.int64 if says == "labels" else np.float32)
    recipe = Recipe(says, epochs, batch_size, learning_rate, seed)
    where, runs = devices.device(device), len(targets)
    if start is not None:
        weights = np.tile(np.asarray(start, dtype=np.float32), (runs, 1))
    else:
        generator = torch.Generator().manual_seed(torch_seed(recipe.seed, "distillation"))
        weights = model.flat(model.initial_parameters(runs, generator)).detach().numpy().copy()
    inputs = model.inputs(torch.tensor(records, device=where))
    models_at_once, records_at_once = _at_once(model, where, inputs, recipe, runs)

    def train(group, stop):
        own = torch.tensor(targets[group], device=where)
        begin = torch.tensor(weights[group], device=where)
        return _trained(model.prepared(where, 1.0), begin, inputs, own, recipe, records_at_once, stop)

    groups = [slice(first, min(first + models_at_once, runs)) for first in range(0, runs, models_at_once)]
    workers = 1 if where.type == "cuda" else torch.get_num_threads()
    loss = {}
    with devices.matmul_precision("highest"), closing(devices.side_by_side(train, groups, workers)) as results:
        for group, (trained, losses) in results:
            weights[group] = trained.cpu().numpy()
            loss[group.start] = losses.cpu().numpy()
    total = np.sum([loss[first] for first in sorted(loss)], axis=0)
    return Surrogates(weights, total / (runs * len(records)))


def _trained(model, begin, inputs, said, recipe, at_once, stop):
    """The weights of one group of surrogates, and the sum of its losses in each epoch."""
    theta = theta_of(model, begin).requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=recipe.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(torch_seed(recipe.seed, "distillation", 1))
    loss = _loss(model, said, recipe)
    sums = torch.zeros(recipe.epochs, dtype=torch.float64, device=theta.device)
    for epoch in range(recipe.epochs):
        if stop.is_set():
            break
        order = torch.randperm(len(inputs), generator=generator).to(theta.device)
        for batch in torch.split(order, min(recipe.batch_size, len(order))):
            optimizer.zero_grad()
            for part in torch.split(batch, at_once):
                summed = loss(theta, inputs[part], part)
                torch.autograd.backward(summed / len(batch))
                sums[epoch] += summed.detach()
            optimizer.step()
    return model.flat(theta.detach()), sums


def _loss(model, said, recipe):
    """The loss summed over models and records, from theta, inputs and the indices of their records."""
    if recipe.says == "labels":
        wide = one_hot(said, model.classes).float()
    else:
        logits = said.log() if recipe.says == "probabilities" else said
        wide = torch.softmax(logits - logits.amax(dim=2, keepdim=True), dim=2)
    targets = wide.permute(1, 2, 0).contiguous()
    entropies = torch.special.entr(targets).sum(dim=(1, 2))

    def loss(theta, inputs, records):
        logs = torch.log_softmax(model.logits(theta, inputs), dim=1)
        return -(targets[records] * logs).sum() - entropies[records].sum()

    return loss


def _at_once(model, device, inputs, recipe, runs):
    """How many models train at once, and how many records one part of a batch has."""
    prepared = model.prepared(device, 1.0)
    few, more = (_kept(prepared, inputs[:1].expand(many, *inputs.shape[1:]), recipe) for many in (2, 4))
    of_a_record = max(1, (more - few) // 2)
    records = max(1, min(KEPT[device.type] // of_a_record, recipe.batch_size, len(inputs)))
    return max(1, min(KEPT[device.type] // (records * of_a_record), block_size(model), runs)), records


def _kept(model, inputs, recipe):
    """How many bytes autograd keeps for the loss of one model."""
    storages = {}

    def keep(value):
        storages[value.untyped_storage().data_ptr()] = value.untyped_storage()
        return value.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, torch.Tensor.detach):
        theta = model.initial_parameters(1, torch.Generator(inputs.device)).requires_grad_()
        answers = torch.zeros(1, len(inputs), model.classes, device=inputs.device)
        loss = _loss(model, answers, recipe._replace(says="logits"))
        loss(theta, inputs, torch.arange(len(inputs), device=inputs.device))
    return sum(storage.nbytes() for storage in storages.values())
