"""Calls of dpsub.models and dpsub.crafters."""

import math

import numpy as np
import torch

from dpsub import crafters, models
from dpsub.models.interface import cross_entropy
from dpsub.trainers import StepCanary, assemble
from fuzz import cast
from fuzz.call import OMIT, Call
from fuzz.cast import FLAT, HOSTILE, MODELS, ONE_HOT, SPECS, TASKS
from fuzz.checkers import anything, is_pair, of
from fuzz.hostile import LITTLE

CRAFTER = {"task": [FLAT], "model": MODELS, "spec": SPECS, "seed": [0, 3, np.int64(5)]}
WEIGHTS = [torch.zeros(2, cast.MLP.parameters), torch.ones(1, cast.MLP.parameters)]
FINAL = np.random.default_rng(0).normal(size=(5, cast.LINEAR.parameters))
SAMPLED = crafters.AdversarialSample(np.ones(3), 1, device="cpu")
CRAFTED = crafters.adversarial_sample(
    cast.LINEAR, FINAL, [0, 1, 0, 1, 1], start=(np.ones(3), 1), loss="fisher", steps=3, device="cpu"
)
TARGETS = [OMIT, None, 0, 5, np.int8(2)]


def crafted(result, /, *, task, spec, **_):
    is_pair(result)
    assert 0 <= result.slot < len(task.y_train)
    assert result.adjacency == "substitute"
    assert all(isinstance(value, int | str) or math.isfinite(value) for value in result.details.values())
    assert result.scenario != "S2" or np.isclose(np.linalg.norm(result.z), spec.max_grad_norm)


def referred(result, /, *, task, target=None, **_):
    assert result.confidence.shape == task.y_train.shape
    assert ((result.confidence >= 0) & (result.confidence <= 1)).all()
    assert result.slot == (result.confidence.argmin() if target is None else target)
    assert result.z.y == task.y_train[result.slot]
    assert torch.isfinite(result.gradient()).all()


def each_step(result, /, *, task, model, spec, kind, **_):
    assert isinstance(result, StepCanary)
    assert 0 <= result.slot < len(task.y_train)
    assert result.adjacency == "substitute"
    assert kind in result.scenario
    assert len(result.fingerprint) == 16
    assert all(isinstance(value, int | str) or math.isfinite(value) for value in result.details.values())
    bank = assemble(model, task, spec, bits=np.zeros(2, dtype=np.int8), generator=torch.Generator().manual_seed(0))
    for worlds in (result.gradients(bank, 1), result.against_nothing(adjacency="zero_out").gradients(bank, 2)):
        for one in worlds[:2]:
            assert one is None or (torch.linalg.vector_norm(one, dim=-1) <= spec.max_grad_norm * 1.001).all()


def sample(result, /, *, start, steps=10, **_):
    assert result.x.shape == np.shape(start[0])
    assert (result.x.dtype, result.y) == (np.float32, start[1])
    assert np.isfinite(result.x).all()
    assert len(result.trace["loss"]) == len(result.trace["separation"]) == steps + 1
    assert np.isfinite(result.trace["loss"]).all()
    assert not np.isnan(result.trace["separation"]).any()


def scored(result, /, *, weights, **_):
    assert (result.shape, result.dtype) == ((len(weights),), np.float32)
    assert np.isfinite(result).all()


def curves(result, /, **_):
    assert result["step"].tolist() == [0, 1, 2, 3]
    assert all(values.shape == (4,) and np.isfinite(values).all() for values in result.values())


def network(result, /, *, task, **_):
    models.check_fits(result, task)
    assert sum(p.numel() for p in result.module().parameters()) == result.parameters > 0


def module(result, /, *, parameters=None, **_):
    vector = torch.nn.utils.parameters_to_vector(result.parameters())
    assert torch.isfinite(vector).all()


def answers(result, /, *, model, weights, x):
    assert result.shape == (len(weights), len(x), model.classes)
    assert torch.isfinite(result).all() or not torch.isfinite(x).all() or weights.abs().max() > 1e15


def start_of(result, /, *, model, **_):
    assert result.shape == (model.parameters,)
    assert np.isfinite(result).all()


def module_of(model):
    """`model.module`; without parameters it draws random ones."""

    def made(parameters=None):
        with torch.random.fork_rng(enabled=parameters is None):
            return model.module(parameters)

    return made


CALLS = [
    Call("dpsub.models.linear", models.linear, {"task": TASKS}, network, hostile=HOSTILE),
    Call(
        "dpsub.models.mlp",
        models.mlp,
        {
            "task": TASKS,
            "hidden": [OMIT, (2,), [3, 2], np.array([2]), range(1, 3)],
            "activation": [OMIT, "tanh", "relu"],
        },
        network,
        hostile=HOSTILE | {"hidden": LITTLE},
    ),  # fmt: skip,
    Call(
        "dpsub.models.convnet",
        models.convnet,
        {"task": [cast.IMAGES], "size": [OMIT, "auto", "small"], "activation": [OMIT, "tanh", "relu"]},
        network,
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.models.check_fits",
        models.check_fits,
        {"model": MODELS, "task": [FLAT, cast.BARE]},
        anything,
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.models.from_module",
        models.from_module,
        {
            "module": [torch.nn.Linear(cast.LINEAR.features, cast.LINEAR.classes)],
            "task": [FLAT],
            "start": [OMIT, "own", "fresh"],
            "loss": [OMIT, None, cross_entropy],
            "name": [OMIT, None, "mine"],
        },
        network,
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.models.Linear",
        models.Linear,
        {"features": [1, 3], "classes": [2, 3], "theta_0": [OMIT, None]},
        anything,
    ),
    *(
        Call(
            f"dpsub.models.{name}.module",
            module_of(model),
            {
                "parameters": [
                    OMIT,
                    None,
                    np.ones(model.parameters),
                    torch.ones(model.parameters),
                    [0.5] * model.parameters,
                ]
            },
            module,
        )
        for name, model in (("Linear", cast.LINEAR), ("Network", cast.MLP))
    ),  # fmt: skip,
    *(
        Call(
            f"dpsub.models.{kind.__name__}.starting_from",
            model.starting_from,
            {"theta_0": [np.ones(model.parameters), torch.ones(model.parameters), [1] * model.parameters]},
            of(kind),
        )
        for kind, model in ((models.Network, cast.MLP), (models.Linear, cast.LINEAR))
    ),
    Call(
        "dpsub.models.outputs_of",
        models.outputs_of,
        {"model": [cast.MLP], "weights": WEIGHTS, "x": [torch.tensor(FLAT.x_train), torch.zeros(1, 3)]},
        answers,
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.crafters.pretrained_start",
        crafters.pretrained_start,
        {
            "task": [FLAT],
            "model": MODELS,
            "seed": [0, np.int64(5)],
            "epochs": [1, np.int8(2)],
            "batch_size": [OMIT, 4, 1],
            "learning_rate": [OMIT, 0.1, 1],
        },
        start_of,
        hostile=HOSTILE | {"epochs": LITTLE},
    ),
    *(
        Call(
            f"dpsub.crafters.{name}",
            getattr(crafters, name),
            CRAFTER | more,
            crafted,
            hostile=HOSTILE | {"steps": LITTLE},
        )
        for name, more in (
            ("gradient", {}),
            ("crafted_input", {"target": TARGETS, "steps": [1, 3, np.int8(2)], "learning_rate": [OMIT, 0.1, 1]}),
            ("mislabeled", {"target": TARGETS}),
            ("natural", {"target": TARGETS}),
            ("blank", {"label": [OMIT, None, 0, np.int8(2)]}),
            ("in_distribution", {}),
            ("clipbkd", {"label": [OMIT, None, 0, np.int8(2)]}),
        )
    ),
    *(
        Call(
            f"dpsub.crafters.{name}",
            getattr(crafters, name),
            CRAFTER | {"kind": ["dirac", "constant", "random"]},
            fine,
            hostile=HOSTILE,
        )
        for name, fine in (("fixed_gradient", crafted), ("gradient_each_step", each_step))
    ),
    *(
        Call(
            f"dpsub.crafters.record_each_step {kind}",
            crafters.record_each_step,
            CRAFTER | {"kind": [kind]} | more,
            each_step,
            hostile=HOSTILE | {"steps": LITTLE},
        )
        for kind, more in (
            ("blank", {}),
            ("mislabeled", {"target": TARGETS}),
            ("crafted", {"target": TARGETS, "steps": [OMIT, 1, np.int8(2)], "learning_rate": [OMIT, 0.1, 1]}),
            (
                "adversarial",
                {
                    "target": TARGETS,
                    "steps": [OMIT, 1, 3],
                    "learning_rate": [OMIT, 0.1, 1],
                    "radius": [OMIT, 0.5, 1],
                    "ball": [OMIT, None, "linf", "l2"],
                },
            ),
        )
    ),
    Call(
        "dpsub.crafters.reference",
        crafters.reference,
        CRAFTER | {"target": TARGETS},
        referred,
        hostile=HOSTILE,
    ),
    *(
        Call(
            f"dpsub.crafters.attribute {case}",
            crafters.attribute,
            CRAFTER | {"task": [task], "target": TARGETS} | more,
            crafted,
            hostile=HOSTILE | {"columns": LITTLE, "values": LITTLE, "only": LITTLE},
        )
        for case, task, more in (
            ("column", FLAT, {"columns": [0, np.int8(2)], "values": [OMIT, None, (0.5, -1), np.array([3.0])]}),
            ("values", FLAT, {"columns": [1], "only": [None, 7.0, (0, 1.5), np.array([2.0, 1.0])]}),
            ("group", ONE_HOT, {"columns": [(0, 1, 2), [1, 2, 0], range(3)], "only": [OMIT, (0, 1), [1, 0]]}),
        )
    ),
    Call(
        "dpsub.crafters.adversarial_sample",
        crafters.adversarial_sample,
        {
            "model": [cast.LINEAR],
            "weights": [FINAL, FINAL.astype(np.float16), torch.tensor(FINAL), FINAL.tolist()],
            "bits": [[0, 1, 0, 1, 1], np.array([1, 0, 0, 1, 0], dtype=np.int8), torch.tensor([0, 0, 1, 1, 1])],
            "start": [(np.zeros(3), 1), ([0.5, 0, 1], np.int8(2)), (torch.ones(3), 0)],
            "y_prime": [OMIT, None, 2, np.int8(2)],
            "loss": [OMIT, "ude", "ade", "fisher", "bhattacharyya"],
            "margin": [OMIT, 0, 0.05, np.float32(0.25)],
            "steps": [OMIT, 0, 1, np.int8(3), 12.0],
            "learning_rate": [OMIT, 0.01, 1],
            "optimizer": [OMIT, "adam", "sgd"],
            "bounds": [OMIT, None, (0, 1), (np.zeros(3), 2.0), [-1, [1, 1, 1]]],
            "device": [OMIT, "auto", "cpu"],
        },
        sample,
        hostile=HOSTILE | {"steps": LITTLE},
    ),
    Call(
        "dpsub.crafters.AdversarialSample",
        crafters.AdversarialSample,
        {
            "x": [np.ones(3), [0.5, 1], torch.ones(2, 2)],
            "y": [0, np.int8(2)],
            "y_prime": [OMIT, None, 1],
            "details": [OMIT, {"runs": 3}],
            "trace": [OMIT, {"loss": np.ones(2)}],
            "device": [OMIT, "cpu", "auto", "cuda"],
        },
        of(crafters.AdversarialSample),
    ),
    Call(
        "dpsub.crafters.AdversarialSample.scores",
        SAMPLED.scores,
        {"model": [cast.LINEAR], "weights": [FINAL, torch.tensor(FINAL), FINAL[:1].tolist()]},
        scored,
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.crafters.AdversarialSample.curves",
        CRAFTED.curves,
        {"model": [cast.LINEAR], "weights": [FINAL, torch.tensor(FINAL)], "bits": [[0, 0, 1, 1, 0]]},
        curves,
        hostile=HOSTILE,
    ),
]
