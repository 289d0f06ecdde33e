"""Models that implement `dpsub.models.Model` and are none of dpsub's are crafted for, trained and stored like those."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from dpsub import audits, crafters, data, models
from dpsub.models.interface import Span
from dpsub.models.networks import Network

PROTOCOL = {
    *("input_shape", "classes", "parameters", "initial_parameters", "flat", "first", "inputs", "logits", "clipped_sum"),
    *("gradient_norms", "module", "working_floats"),
}


class Wrapped:
    """One of dpsub's models behind another class: no subclass, and nothing but what `Model` asks for."""

    def __init__(self, model):
        self._model = model

    def __repr__(self):
        return f"Wrapped({self._model!r})"

    def __getattr__(self, name):
        if name not in PROTOCOL:
            raise AttributeError(name)
        return getattr(self._model, name)

    def prepared(self, device, sample_rate):
        return Wrapped(self._model.prepared(device, sample_rate))

    def within_span(self, inputs, vectors):
        span = self._model.within_span(inputs, vectors)
        return None if span is None else Span(Wrapped(span.model), span.inputs, span.vectors)


class Naive:
    """A bank of any small module, each record's gradient by itself: whatever may be left out is left out."""

    input_shape, classes = (5,), 3

    def __init__(self):
        self._architecture = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self._names = [name for name, _ in self._architecture.named_parameters()]
        self._shapes = [value.shape for value in self._architecture.parameters()]
        self.parameters = sum(shape.numel() for shape in self._shapes)
        self._start = torch.linspace(-0.5, 0.5, self.parameters)

    def __repr__(self):
        return "Naive(5 to 3)"

    def _call(self, theta, x):
        parts = theta.split([shape.numel() for shape in self._shapes])
        named = {name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)}
        return functional_call(self._architecture, named, (x,))

    def initial_parameters(self, runs, generator):
        return self._start.repeat(runs, 1)

    def flat(self, theta):
        return theta

    def first(self, theta, runs):
        return theta[:runs]

    def inputs(self, x):
        return x

    def logits(self, theta, inputs):
        return vmap(self._call, in_dims=(0, None), out_dims=2)(theta, inputs)

    def _gradients(self, theta, inputs, labels):
        """(runs, records, parameters)"""

        def loss(theta, x, y):
            return nn.functional.cross_entropy(self._call(theta, x[None]), y[None])

        return vmap(vmap(grad(loss), in_dims=(None, 0, 0)), in_dims=(0, None, None))(theta, inputs, labels)

    def clipped_sum(self, theta, inputs, labels, sampled, max_grad_norm, *, out=None):
        gradients = self._gradients(theta, inputs, labels)
        scale = (max_grad_norm / (gradients.norm(dim=2) + 1e-6)).clamp(max=1)
        if sampled is not None:
            scale = scale * sampled.T
        total = torch.einsum("rn,rnp->rp", scale, gradients)
        return total if out is None else out.copy_(total)

    def gradient_norms(self, theta, inputs, labels):
        return self._gradients(theta, inputs, labels).norm(dim=2).T

    def module(self, parameters=None):
        module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        if parameters is not None:
            nn.utils.vector_to_parameters(torch.as_tensor(parameters, dtype=torch.float32).clone(), module.parameters())
        return module

    def prepared(self, device, sample_rate):
        return self

    def working_floats(self, records, runs, sample_rate):
        return 4 * records[0] * runs * self.parameters

    def within_span(self, inputs, vectors):
        return None


def crafted(task, model, spec):
    """By name, what every crafter makes of a model."""
    short = {"S3": {"steps": 20, "learning_rate": 0.1}}
    return {
        name: craft(task, model, spec, seed=0, **short.get(name, {})) for name, craft in crafters.BY_SCENARIO.items()
    }


def test_a_wrapped_model_is_attacked_and_trains_to_the_same_numbers(run, task, model, spec):
    wrapped = Wrapped(model)
    assert isinstance(wrapped, models.Model)
    assert not isinstance(wrapped, models.Linear | Network)
    ours, theirs = crafted(task, model, spec), crafted(task, wrapped, spec)
    assert {name: pair.fingerprint for name, pair in theirs.items()} == {
        name: pair.fingerprint for name, pair in ours.items()
    }
    for name, metrics in (("S2", ()), ("S4", ("accuracy", "weights", "distance", "gradient"))):
        found = run(store=None, model=wrapped, canary=theirs[name], metrics=metrics)
        assert found.equals(run(store=None, canary=ours[name], metrics=metrics))
        assert found.attrs["model"] == f"Wrapped({model!r})"


def test_a_wrapped_network_trains_to_the_same_numbers(run, task, spec):
    network = models.mlp(task, (6,))
    pair = crafters.mislabeled(task, network, spec, seed=0)
    for q in (1.0, 0.3):
        options = {"store": None, "canary": pair, "spec": replace(spec, sample_rate=q, optimizer="adam")}
        assert run(model=Wrapped(network), **options).equals(run(model=network, **options))


def test_a_wrapped_model_is_stored_under_its_own_name(run, store, model, expected, forbid_training):
    made = run(model=Wrapped(model))
    assert made.equals(expected)
    with pytest.raises(ValueError, match=r"model: stored 'Wrapped\(Linear"):
        run()
    forbid_training()
    assert run(model=Wrapped(model)).identical(made)
    assert audits.load(store).identical(made)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_naive_model_agrees_with_a_network_but_for_rounding(run, spec, optimizer):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 5)), rng.integers(0, 3, 40)
    task = data.from_arrays(x[:20], y[:20], x_aux=x[20:], y_aux=y[20:], x_test=x[20:], y_test=y[20:])
    naive = Naive()
    network = models.mlp(task, (4,)).starting_from(torch.linspace(-0.5, 0.5, naive.parameters))
    setting = replace(spec, max_grad_norm=0.3, sample_rate=0.5, learning_rate=0.05, optimizer=optimizer)
    ours, theirs = crafted(task, network, setting), crafted(task, naive, setting)
    for name, pair in ours.items():
        assert (theirs[name].slot, theirs[name].details.keys()) == (pair.slot, pair.details.keys())
        for mine, other in ((pair.z, theirs[name].z), (pair.z_prime, theirs[name].z_prime)):
            if name == "S2":
                np.testing.assert_array_equal(mine, other)
            else:
                np.testing.assert_allclose(mine.x, other.x, atol=1e-4)
                assert mine.y == other.y
        options = {"store": None, "task": task, "spec": setting, "runs": 20, "canary": pair}
        options["metrics"] = ("accuracy", "weights", "distance", "gradient")
        mine, other = (run(model=model, **options) for model in (network, naive))
        assert other.attrs["model"] == "Naive(5 to 3)"
        for variable in mine.data_vars:
            np.testing.assert_allclose(mine[variable], other[variable], atol=2e-4, rtol=2e-4, err_msg=variable)
        np.testing.assert_array_equal(mine.bit, other.bit)
