"""A seeded fuzz of the public face: no argument gives a wrong number, a crash of the interpreter, or a hang.

Each call takes good arguments, most of the time with one or two that are spoiled. Any error refuses. What is answered
must be a number that can be right. `DPSUB_FUZZ_EXAMPLES=1000 pytest -m slow tests/test_fuzz.py` tries more.
"""

import inspect
import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from test_public_face import named, public
from torch.utils.data import DataLoader, TensorDataset

from dpsub import DPSGD, CanaryPair, Pairs, crafters, data, estimators, models, opacus

SECONDS = 20  # of computing; other processes on the machine do not count
EXAMPLES = int(os.environ.get("DPSUB_FUZZ_EXAMPLES", "100"))
OMIT = object()  # leaves an argument out
# Their results are for reading, they are parts of a training, or their own tests try them.
ROOMS_UNTRIED = ("data", "figures", "findings", "models", "crafters", "trainers", "audits", "distinguishers")
UNTRIED = tuple(f"dpsub.{room}." for room in ROOMS_UNTRIED)
EXCUSED = {"runs_needed", "distinguish", "one_run_dataset", "proxy_labels"}
pytestmark = pytest.mark.filterwarnings("ignore")

HUGE = 10**400
LITTLE = [
    0, 1, 2, 3, -1, -0.0, 0.5, 1.0, -1.5, 0.999, 1e-300, -1e300, 5e-324, -HUGE, float("nan"), float("inf"),
    np.float32(0.5), np.float64("nan"), np.int8(3), Fraction(1, 3), Decimal("0.5"), None, True, 1 + 0j, object(), len,
    range(3), (), {}, set(), [None], [[1], [1, 2]], ("a",), {"a": 1}, {"S2": [[]]}, b"S2", pd.NA, Path("missing"),
    np.random.default_rng(0), "", "nan", "S2", "ranks", "a\0b", "\ud800", "$", "a\nb",
    np.array([]), np.array(1.0), np.array([np.nan, 1.0]), np.zeros(3), np.ones((2, 3)), np.zeros((0, 3)),
    np.array(["a", "b"]), np.array([None, 1], dtype=object), np.array([1j, 2]), np.array([True, False, True]),
    np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]), np.arange(12.0).reshape(3, 4)[::-1, ::2],
    pd.Series([1.0, 2.0, 3.0], index=[5, 6, 7]), pd.DataFrame({"a": [1.0]}), xr.DataArray(np.ones(3), dims="step"),
    xr.Dataset({"score": ("run", [1.0, 2.0])}), torch.ones(2, requires_grad=True), iter([1.0, 2.0]),
]  # fmt: skip
LARGE = [1e15, 2.0**53, 1e300, 10**15, 2**63, HUGE, np.uint64(2**63), Fraction(HUGE, 1)]
ADJACENCIES, DELTAS = ["substitute", "add_remove", "zero_out"], [1e-5, 0.5, np.float32(1e-6), 1e-300]
# Arguments of which a large number is a large amount of work.
WORK = {"steps", "runs", "repeats", "models", "pairs", "epochs", "folds", "guesses", "sample_rate", "parameters"}


def tried(examples, name, right, /, *groups, function=None, **good):
    """Whether any of the examples was answered; each fourth is not spoiled.

    `right` takes what was returned, and asserts what the docstring promises. `groups` and `good` hold values that the
    function called `name` takes, by argument.
    """
    function = function or named(name.split()[0])
    good = {argument: values for group in (*groups, good) for argument, values in group.items()}
    rng, answered = np.random.default_rng(0), 0
    for example in range(examples):
        arguments = {argument: pick(rng, values) for argument, values in good.items()}
        for argument in rng.choice([*good], min(rng.integers(3) if example % 4 else 0, len(good)), replace=False):
            hostile = cast()[1].get(argument) if rng.random() < 0.5 else None
            arguments[argument] = pick(rng, hostile or LITTLE + LARGE * (argument not in WORK))
        arguments = {argument: value for argument, value in arguments.items() if value is not OMIT}
        before, result = state(), None
        try:
            with limited():
                result = function(**arguments)
        except TooLong:
            raise AssertionError(f"{name}({arguments}) takes more than {SECONDS} s") from None
        except Exception:  # whoever refuses it: dpsub, NumPy, torch, SQLite or Python
            pass
        assert state() == before, f"{name}({arguments}) changed what belongs to the process"
        if result is not None:
            answered += 1
            try:
                right(result)
            except AssertionError as error:
                raise AssertionError(f"{name}({arguments}) is {result}") from error
    return answered > 0


def pick(rng, values):
    return values[rng.integers(len(values))]


def state():
    """What belongs to the process, and no call may change."""
    generator = torch.random.get_rng_state().sum().item()
    tensors = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    return np.geterr(), generator, *tensors, torch.backends.mkldnn.matmul.fp32_precision


class TooLong(BaseException):
    """No `Exception`: whatever the call catches, it does not catch this."""


@contextmanager
def limited():
    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def number(low=0.0, high=np.inf):
    def right(result):
        values = np.asarray(result, dtype=float)
        assert ((values >= low) & (values <= high)).all()  # no NaN is

    return right


def of(names, low=0.0, high=np.inf):
    """Takes results whose attributes of these names are numbers in this range."""
    return lambda result: number(low, high)([getattr(result, name) for name in names.split()])


def bounds(result):
    for bound in np.ravel(result):
        assert 0 <= bound.epsilon < np.inf
        assert bound.mu is None or 0 <= bound.mu < np.inf
        assert bound.noise_multiplier is None or bound.noise_multiplier > 0
        assert bound.epsilon > 0 or bound.note


def risks(result):
    number(0, 1)([bound.risk for bound in np.ravel(result)])


def all_audited(result):
    for single in result.values():
        audited(single)


def audited(result):
    assert np.isin(result.bit, (0, 1)).all()
    assert result.score.dtype == np.float32
    assert all(np.isfinite(values).all() for values in result.data_vars.values())
    assert result.attrs["adjacency"] in ADJACENCIES


def pair(result):
    for world in (result.z, result.z_prime):
        x = world.x if isinstance(world, tuple) else np.zeros(0, np.float32) if world is None else world
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
    assert result.slot >= 0
    assert len(result.fingerprint) == 16


def all_pairs(result):
    assert len({*result.slots}) == len(result) == len(result.z) == len(result.z_prime)
    for single in result:
        pair(single)


def finite(result):
    assert np.isfinite(np.asarray(result)).all()


def anything(result):
    assert result is not None


@cache
def cast():
    """A small task, models, parameters, canaries and pairs; and others that do not go together, by argument."""
    rng, labels, eye = np.random.default_rng(0), [0, 1, 2, 0, 1, 2], np.eye(3)
    x, aux, test = rng.random((3, 6, 3))
    task = data.from_arrays(x, labels, x_aux=aux, y_aux=labels, x_test=test, y_test=labels)
    wide = data.from_arrays(rng.random((6, 30)), labels)
    images = data.from_arrays(rng.random((6, 1, 16, 16)), labels)
    spec, linear, first = DPSGD(1.0, 1.0, 0.5, 2, 0.1), models.linear(task), task.x_train[0]
    record, gradient = (craft(task, linear, spec, seed=0) for craft in (crafters.mislabeled, crafters.gradient))
    many = [
        craft(task, linear, spec, pairs=3, seed=0) for craft in (crafters.mislabeled_pairs, crafters.gradient_pairs)
    ]
    good = {
        "task": [task],
        "model": [linear, models.mlp(task, (2,))],
        "spec": [spec, replace(spec, sample_rate=1.0), replace(spec, optimizer="adam", steps=3)],
        "canary": [record, gradient, record.against_nothing(adjacency="zero_out"), record.exchanged()],
        "pairs": many,
    }
    foreign = [
        CanaryPair((first, 0), (first, 7), 0, "S4"), CanaryPair((first, 0), (first, 1), 6, "S4"),
        CanaryPair((first[:2], 0), (first[:2], 1), 0, "S4"), CanaryPair((first * 1e30, 0), (-first * 1e30, 1), 0, "S4"),
        CanaryPair(eye[0] * 1e-45, -eye[0] * 1e-45, 0, "S2"), CanaryPair(np.ones(3), -np.ones(3), 0, "S2"),
        replace(record, task="another"),
    ]  # fmt: skip
    extreme = ("learning_rate", 1e38), ("learning_rate", 1e-38), ("max_grad_norm", 1e-15), ("noise_multiplier", 1e30)
    bound = estimators.LowerBound(3.9, "gdp", "gdp", True, mu=0.9)
    hostile = {
        "task": [wide, images, data.digits(20), data.from_arrays(task.x_train, task.y_train)],
        "model": [models.linear(wide), models.convnet(images)],
        "spec": [replace(spec, **{name: value}) for name, value in extreme],
        "canary": [*foreign, [record, record]],
        "pairs": [*([one] for one in foreign), [record] * 2, Pairs([0, 9], eye[:2], eye[1:], [0, 1], [1, 0])],
        "bound": [[bound], replace(bound, mu=np.nan), replace(bound, claim="pld", mu=None, noise_multiplier=-1)],
        "engine_or_history": [[(0, 1.0, 1)], [(1.0, 2.0, 1)], [(1.0, 1.0, HUGE)], [(1.0, 1.0)], [(1.0, 1.0, 1.5)]],
    }
    return good, hostile


def of_accounting():
    # Mostly full batches, which have closed forms; the others are short enough for small grids.
    law = {"sample_rate": [1.0, np.float32(1), 0.5], "steps": [1, 2, np.int64(2), 4.0]}
    training = {"noise_multiplier": [1.0, 2, 20.0, np.float32(1.5), 1e-4, 1e6], **law}
    drawn = {"adjacency": ADJACENCIES, "sampling": [OMIT, "poisson", "epochs", "without_replacement"]}
    asked, rate = {"delta": DELTAS, **drawn}, {"sample_rate": [0.01, 0.3, 1]}
    prior = {"prior": [OMIT, 0.5, 1e-9, [0.2, 0.8], [1e-300, 1.0 - 1e-16]], "fpr": [OMIT, 0.05, 1e-300]}
    whole, histories = {"sample_rate": [1.0, np.float32(1)]}, [[(1.0, 1.0, 2)], [(2.0, 1, 3), [1.5, 1, 1.0]]]
    yield "epsilon", number(), training, asked, {"steps": [2, [1, 3], np.array([2, 1]), range(1, 3)]}
    yield "epsilon of a history", number(), asked, {"history": histories}
    yield "epsilon_interval", of("lower estimate upper"), training, asked, {"eps_error": [OMIT, 1e-3, 1]}
    yield "delta", number(0, 1), training, drawn, {"epsilon": [0, 1.0, [0.0, 1.0], (3,), np.float64(100)]}
    yield "gdp_delta", number(0, 1), {"mu": [0, 1, 30.0], "epsilon": [0, 1.0, np.float64(100)]}
    yield "gdp_mu", number(), {"epsilon": [0, 1.0, np.float64(100)], "delta": DELTAS}
    yield "gdp_epsilon", number(), {"mu": [0, 1, 30.0], "delta": DELTAS}
    yield "group_privacy_epsilon", number(), training, whole, {"delta": DELTAS}
    yield "noise_multiplier", number(5e-324), law, whole, asked, {"target_epsilon": [1.0, 10, np.float32(2)]}
    yield "noise_multiplier for a risk", number(5e-324), law, whole, asked, prior, {"target_risk": [0.9, 0.1]}
    yield "risk", of("posterior advantage fpr tpr", 0, 1), training, asked, prior
    yield "tradeoff", number(0, 1), training, drawn, {"fpr": [0.0, 1, [0.1, 0.2], np.zeros((2, 2))]}
    yield "worst_case_epsilon", number(), training, rate, {"delta": DELTAS}
    seen = {"runs": [1, 50, np.int16(3)], "every_step": [OMIT, True], "seed": [OMIT, 7, np.uint64(3)]}
    yield "dpsub.audit_worst_case", audited, training, rate, drawn, seen


def of_estimators():
    bits, rng = (np.arange(40) // 2) % 2, np.random.default_rng(0)
    scores = rng.normal(size=40) - 2.0 * bits
    observed = {
        "scores": [
            scores, scores.tolist(), scores.astype("f4"), np.stack([scores, -scores], axis=1), np.round(scores),
            np.where(bits, -np.inf, np.inf), np.zeros(40), pd.Series(scores), scores * 1e300,
        ],
        "bits": [bits, bits.tolist(), bits.astype(bool), xr.DataArray(bits, dims="run")],
    }  # fmt: skip
    level = {"delta": DELTAS, "alpha": [OMIT, 0.05, 1e-6, 0.49]}
    claims = {"claim": [OMIT, "gdp", "dp", "katz"], "rule": [OMIT, "ranks", "bets", "split", "best", 0.0, -3, 1e300]}
    law = {"claim": ["pld"], "sample_rate": [1.0], "steps": [3], "adjacency": ADJACENCIES}
    of_audit = {"sample_rate": 1.0, "steps": 3, "adjacency": "substitute", "seed": 0}
    steps = xr.Dataset({"score": ("observation", scores), "bit": ("observation", bits)}, attrs=of_audit)
    runs = steps.rename(observation="run").assign_coords(step=3)
    pairs, several = steps.rename(observation="pair").expand_dims("model"), rng.normal(size=(2, 20))
    guesses = {"correct": [0, 60, np.int8(100), [50]], "guesses": [100, [100]], "pairs": [100, 10**6]}
    certain, folds = {"claim": [OMIT, "gdp", "dp"]}, {"folds": [np.arange(40) // 20, (np.arange(40) // 10).tolist()]}
    measures = {"measure": [OMIT, "accuracy", "tpr", "ppv"], "prior": [OMIT, 0.1, 1e-9], "fpr": [OMIT, 0.3]}
    yield "bound", bounds, level, {"result": [runs, steps, pairs, runs, steps, pairs, runs.drop_vars("bit")]}
    yield "epsilon_lower_bound", bounds, observed, level, claims, {"simultaneous": [OMIT, True]}
    yield "epsilon_lower_bound of the mechanism", bounds, observed, level, law
    yield "epsilon_lower_bound by folds", bounds, observed, level, certain, folds
    yield "max_certifiable_epsilon", number(), level, claims, {"runs": [4, 1_000, np.int64(7)]}
    yield "one_run_epsilon_lower_bound", bounds, guesses, level, {"claim": [OMIT, "gdp", "dp", "product"]}
    yield "one_run_guesses", anything, {"scores": [several], "bits": [several > 0], "guesses": [1, [2, 8]]}
    yield "risk_lower_bound", risks, observed, measures, {"alpha": level["alpha"]}
    yield "step_to_training", bounds, law, {"bound": [cast()[1]["bound"][0][0]], "delta": [1e-5], "claim": [OMIT]}
    yield "wealth_of_bets", finite, certain, {"scores": [scores], "bits": [bits], "epsilon": [0.1, 3], "delta": [1e-5]}
    yield "over_repeats", anything, {"bounds": [[1.0], [[1, 2], [3, 4]], scores]}


def of_records():
    eye, about = np.eye(3), {"scenario": ["S4", "mine"], "task": [OMIT, "0" * 16], "details": [OMIT, {"a": 1}]}
    spec = {"noise_multiplier": [1.0, 2], "max_grad_norm": [1, 0.1], "sample_rate": [1, 0.5], "steps": [1, 3.0]}
    worlds = {"z": [(np.ones(3), 1), ([1, 2, 3], 1)], "z_prime": [(np.ones(3), 2), (np.zeros(3), np.int8(0))]}
    slots = {"slots": [[0, 4, 2], (1.0, 2.0, 3.0)], "z": [eye, eye.tolist()], "z_prime": [-eye], **about}
    yield "dpsub.DPSGD", anything, spec, {"learning_rate": [0.1, 1], "optimizer": [OMIT, "adam"]}
    yield "dpsub.CanaryPair", pair, worlds, about, {"slot": [0, np.int64(2)], "adjacency": [OMIT, "substitute"]}
    yield "dpsub.Pairs", all_pairs, slots, {"y": [[0, 1, 2]], "y_prime": [[1, 2, 0]]}
    yield (
        "dpsub.Pairs of gradients",
        all_pairs,
        slots,
        {"support": [[0, 3, 5], [5, 1, 2]], "parameters": [6, np.int64(7)]},
    )


def of_crafters():
    crafter = {name: cast()[0][name] for name in ("task", "model", "spec")} | {"seed": [0, np.int64(5)]}
    for name in sorted({*crafters.__all__} - {"BY_SCENARIO", "crafted_input", "reference"}):
        arguments = inspect.signature(getattr(crafters, name)).parameters.values()
        if {argument.name for argument in arguments if argument.default is argument.empty} == crafter.keys():
            yield name, pair, crafter
    for name in ("gradient", "mislabeled"):
        yield f"{name}_pairs", all_pairs, crafter, {"pairs": [1, 3, np.int8(5)]}


def one_normal(bit, seed):
    return np.random.default_rng(seed).normal(1 - 2 * bit)


def private_step(gradients):
    return np.random.default_rng().normal(size=gradients.shape[1]) + gradients.sum(axis=0)


def of_audits():
    good = cast()[0]
    canary, quiet = {"canary": good["canary"]}, {"progress": [False]}
    here = {"seed": [OMIT, 7], **quiet}
    training = {name: good[name] for name in ("task", "model", "spec")} | here | {"device": [OMIT, "cpu"]}
    metrics = {"metrics": [OMIT, ("accuracy",), ["distance", "gradient"], ("weights",)]}
    runs = {"runs": [2, np.int8(3), 5.0], "repeats": [OMIT, 2], **metrics}
    for name, more in (
        ("audit", canary | runs), ("audit_steps", canary | {"canary_rate": [OMIT, 0.25]}),
        ("audit_one_run", {"pairs": good["pairs"], "models": [OMIT, np.int8(2)], "whiten": [OMIT, 2]}),
        ("audit_training", {"train": [one_normal], "runs": [5, 4.0], "adjacency": ADJACENCIES, "name": ["ε"]}),
    ):  # fmt: skip
        with_task = {} if name == "audit_training" else training
        yield name, audited, with_task, here, more
    steps = {"step": [private_step], "max_grad_norm": [1, 0.5], "adjacency": ADJACENCIES, "steps": [1, np.int8(5)]}
    yield "audit_mechanism", lambda made: finite(made.score), steps, quiet, {"parameters": [3, [1, 2]]}
    swept = {"specs": [{"q = 0.5": good["spec"][0]}], "scenarios": [{"S4": crafters.mislabeled}], "runs": [2]}
    yield "sweep", all_audited, {"task": good["task"], "model": good["model"]}, swept, quiet


def reported(**arguments):
    """The report on three steps of an optimizer of noise 1 under audit."""
    weights, generator = torch.nn.Parameter(torch.zeros(5)), torch.Generator().manual_seed(0)
    about = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 4, "generator": generator}
    optimizer = DPOptimizer(torch.optim.SGD([weights], 0.1), **about)
    auditor = opacus.audit_optimizer(optimizer, **arguments)
    for _ in range(3):
        weights.grad_sample = torch.ones(4, 5)
        optimizer.step()
        optimizer.zero_grad()
    return auditor.report()


def of_opacus():
    accountant, rows = RDPAccountant(), TensorDataset(torch.zeros(8, 2))
    accountant.history = [(1.0, 1.0, 2)]
    loaders = [OMIT, None, DataLoader(rows, batch_size=3), DataLoader(rows, batch_size=None)]
    said = {"engine_or_history": [[(1.0, 1.0, 2)], accountant], "delta": DELTAS, "prior": [OMIT, 1e-9]}
    said |= {"data_loader": loaders, "sampling": [OMIT, "poisson", "epochs"]}
    yield "privacy_statement", of("zero_out substitute"), said
    asked = {"delta": [1e-5], "adjacency": ADJACENCIES, "sample_rate": [0.1, 1.0], "alpha": [OMIT, 0.2]}
    canary = {"canary": [OMIT, "constant", "random", [torch.ones(5)]], "canary_norm": [OMIT, 0.5, 100.0]}
    yield "audit_optimizer", of("epsilon"), asked, canary, reported


ROOMS = [of_accounting, of_estimators, of_records, of_crafters, of_audits, of_opacus]


def full(room, name):
    return name if name.startswith("dpsub.") else f"dpsub.{room.__name__.removeprefix('of_')}.{name}"


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("examples", [4, pytest.param(EXAMPLES, marks=pytest.mark.slow)])
def test_a_call_is_refused_or_answered_with_numbers_that_can_be_right(room, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, right, *groups in room():
        function = groups.pop() if callable(groups[-1]) else None
        assert tried(examples, full(room, name), right, *groups, function=function), f"{name} is never answered"


def test_every_public_function_is_tried():
    tried = {id(named(full(room, name).split()[0])) for room in ROOMS for name, *_ in room()}
    functions = [name for name in public() if inspect.isfunction(named(name)) and not name.startswith(UNTRIED)]
    assert {name.split(".")[-1] for name in functions if id(named(name)) not in tried} <= EXCUSED


def test_the_fuzz_tells_good_from_bad():
    def fuzzed(function, right=anything):
        return tried(1, "f", right, steps=[1], function=function)

    assert fuzzed(lambda steps: 1)
    assert not fuzzed(lambda steps: [][1])
    with pytest.raises(AssertionError, match="nan"):
        fuzzed(lambda steps: float("nan"), number())
    with np.errstate(), pytest.raises(AssertionError, match="what belongs to the process"):
        fuzzed(lambda steps: np.seterr(over="raise"))
