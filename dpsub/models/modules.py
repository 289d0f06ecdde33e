"""Banks of any `torch.nn.Module` that can be differentiated record by record."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import vmap

from dpsub.models.bank_base import GATHER_BELOW, Rows, WeightedSum
from dpsub.models.differentiation import Masked, call, draw, masked, record_gradients, switch
from dpsub.models.identity import identity_of
from dpsub.models.interface import RECORDS_AT_ONCE, Losses, flat_parameters

# About how many numbers activations and gradients of one part of a step hold. Constants, since parts of another size
# round differently. The one of CUDA was not measured.
ROOM = {"cpu": 2**22, "cuda": 2**28}
_GLOBAL_GENERATOR = threading.Lock()  # fresh starts draw from it, as torch's layers do


class FromRecords(nn.Module):
    """A module that takes what a function makes of records, as arguments by name."""

    def __init__(self, module: nn.Module, inputs: Callable[[Tensor], Mapping[str, Any]]) -> None:
        super().__init__()
        self.module, self.inputs = module, inputs

    def forward(self, x: Tensor) -> Any:
        found = self.module(**self.inputs(x))
        return found["logits"] if isinstance(found, Mapping) else found


@dataclass(frozen=True, eq=False)
class ModuleBank(Rows):
    """A bank of any module. `dpsub.models.from_module` makes and checks it.

    The parameters of R models are one tensor (runs, parameters): those that require a gradient, flattened, in the order
    of `module().named_parameters()`. Everything else in the module is the same in all models, and is not trained.

    Attributes:
        name: what it is called in results. It is part of the `repr`, which is stored with every audit.
        input_shape: the shape of one record.
        classes: the number of classes.
        template: the module; its parameters are the start of each model, unless `start` says otherwise.
        losses: from outputs (records, classes) and labels (records,) to (records,) losses.
        start: None: the template's parameters. "fresh": each model starts from its layers' `reset_parameters`. Or a
            function that makes a new module.
        activations: how many numbers a record's forward pass holds for its gradient.
        room: about how many numbers one part of the computation may hold.
        gather: whether each model computes its own batch only. This is faster for small batches.
        generator: where dropout masks come from; None while models are evaluated, without dropout.
        named: whether the user named it, and answers for what the `repr` cannot tell apart.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    template: nn.Module
    losses: Losses
    start: str | Callable[[], nn.Module] | None = None
    activations: int = 0
    room: int = ROOM["cpu"]
    gather: bool = False
    generator: torch.Generator | None = None
    named: bool = False

    @cached_property
    def _net(self) -> tuple[nn.Module, list[Masked]]:
        """The bank's own copy of the module, which a thread of its own may use, and its dropout layers in training."""
        net = switch(copy.deepcopy(self.template), self.generator is not None)
        dropouts = masked(net) if self.generator is not None else []
        if dropouts:  # they note the shapes of their masks
            first = next(value for value in self.template.parameters() if value.requires_grad)
            with torch.no_grad():
                net(torch.zeros(1, *self.input_shape, dtype=first.dtype, device=first.device))
        return net, dropouts

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        """The trained parameters' shapes, by name."""
        return {name: value.shape for name, value in self.template.named_parameters() if value.requires_grad}

    @property
    def parameters(self) -> int:
        return sum(shape.numel() for shape in self._shapes.values())

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        start = "made" if callable(self.start) else self.start or "own"
        checksum, _ = identity_of(self.template, self.losses, self.start)
        about = f"{shape} to {self.classes}, {self.parameters} parameters, {start} start"
        return f"{self.name}({about}, code and values {checksum:08x})"

    @property
    def untold(self) -> tuple[str, ...]:
        """What could differ in another bank of the same `repr`, such as a lambda, unless the user named it."""
        return () if self.named else identity_of(self.template, self.losses, self.start)[1]

    def starting_from(self, theta_0: ArrayLike | Tensor) -> ModuleBank:
        """The same bank, with the same start for every model: (parameters,) finite numbers in the order of `flat`."""
        return replace(self, template=self.module(flat_parameters("theta_0", theta_0, self.parameters)), start=None)

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        """(runs, parameters): the template's own, or fresh ones that are drawn from the generator's stream."""
        if self.start is None:
            return self._row(self.template).to(generator.device, torch.get_default_dtype()).repeat(runs, 1)
        seeds = torch.randint(2**63 - 1, (runs,), generator=generator, device=generator.device).tolist()
        rows = []
        for seed in seeds:
            with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                rows.append(self._row(self._fresh()))
        return torch.stack(rows).to(generator.device, torch.get_default_dtype())

    def _fresh(self) -> nn.Module:
        if callable(self.start):
            made = self.start()
            return FromRecords(made, self.template.inputs) if isinstance(self.template, FromRecords) else made
        module = copy.deepcopy(self.template)
        for layer in module.modules():
            if any(value.requires_grad for value in layer.parameters(recurse=False)):
                layer.reset_parameters()  # type: ignore[operator]
        return module

    def _row(self, module: nn.Module) -> Tensor:
        """(parameters,): what a module trains, flattened."""
        own = dict(module.named_parameters())
        return torch.cat([own[name].detach().flatten() for name in self._shapes])

    def module(self, parameters: ArrayLike | Tensor | None = None, *, training: bool = False) -> nn.Module:
        """One model of the bank: a copy of the module as it is evaluated, with the flat parameters given or its own."""
        module = switch(copy.deepcopy(self.template).cpu(), training)
        if parameters is not None:
            own, vector = dict(module.named_parameters()), flat_parameters("parameters", parameters, self.parameters)
            with torch.no_grad():
                for name, part in self._by_name(vector).items():
                    own[name].copy_(part)
        return module

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(records, classes, runs)."""
        out = torch.empty(len(inputs), self.classes, len(theta), device=theta.device, dtype=theta.dtype)
        net, rest = self._net[0], self._untrained(theta)
        for runs, records, values in self._shared_parts(inputs, len(theta)):

            def outputs(own: Tensor, x: Tensor = values) -> Tensor:
                return call(net, rest | self._by_name(own), x)

            out[records, :, runs] = vmap(outputs, out_dims=2)(theta[runs])
        return out

    def training(self, generator: torch.Generator) -> ModuleBank:
        """The bank as it trains: with dropout, whose masks are drawn from the generator."""
        return replace(self, generator=generator)

    def prepared(self, device: torch.device, sample_rate: float) -> ModuleBank:
        template = copy.deepcopy(self.template).to(device)
        return replace(self, template=template, room=ROOM[device.type], gather=sample_rate < GATHER_BELOW)

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        return 2 * math.prod(records) + 16 * records[0] * runs + 4 * max(self.room, RECORDS_AT_ONCE, self._floats)

    @property
    def _floats(self) -> int:
        return self.parameters + math.prod(self.input_shape) + self.activations

    def _own(self, inputs: Tensor, records: Tensor) -> Tensor:
        return inputs[records.T]

    def _gradients(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, WeightedSum]:
        gradients = self.by_parameter(theta, inputs, labels if labels.ndim == 1 else labels.T)

        def weighted_sum(weights: Tensor, total: Tensor) -> None:
            by_run = weights.T.contiguous()[:, None]
            for piece, gradient in zip(self._by_name(total).values(), gradients, strict=True):
                piece += (by_run @ gradient)[:, 0].view(piece.shape)

        return torch.stack([part.square().sum(dim=2) for part in gradients]).sum(dim=0).sqrt_().T, weighted_sum

    def by_parameter(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """For each trained parameter the records' gradients, (runs, records, numbers).

        Args:
            theta: (runs, parameters).
            inputs: (records, …), or (runs, records, …) if each run has its own.
            labels: (records,) or (runs, records).
        """
        (net, dropouts), rest = self._net, self._untrained(theta)
        masks = draw(dropouts, (len(theta), labels.shape[-1]), self.generator, theta)

        def outputs(own: dict[str, Tensor], x: Tensor, masks: list[list[Tensor]]) -> Tensor:
            for layer, of_layer in zip(dropouts, masks, strict=True):
                layer.masks = iter(of_layer)
            return call(net, rest | own, x[None])[0]

        gradients = record_gradients(outputs, self.losses, self._by_name(theta), inputs, labels, masks)
        return [part.reshape(*part.shape[:2], -1) for part in gradients.values()]

    def _by_name(self, theta: Tensor) -> dict[str, Tensor]:
        """The trained parameters by name, views of (…, parameters)."""
        parts = torch.split(theta, [shape.numel() for shape in self._shapes.values()], dim=-1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view((*part.shape[:-1], *shape)) for (name, shape), part in named}

    def _untrained(self, theta: Tensor) -> dict[str, Tensor]:
        """Frozen parameters and buffers, in the precision of theta."""
        net = self._net[0]
        state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        rest = {name: value.detach() for name, value in state.items() if name not in self._shapes}
        return {name: value.to(theta.dtype) if value.is_floating_point() else value for name, value in rest.items()}
