"""Protocols: who is learned from, who is judged, and what is refused."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
import xarray as xr

import dpsub
from dpsub import CanaryPair, crafters, distinguish, models
from dpsub.audits.distinguishers import Canary

RUNS, PARAMETERS = 60, 12
RECORDS = CanaryPair((np.ones(3), 0), (np.ones(3), 1), slot=0, scenario="S4")


@dataclass(eq=False)
class Spy:
    """Scores a model by its first weight, and records which models it saw: their second weight is their number."""

    learned: list = field(default_factory=list)
    judged: list = field(default_factory=list)

    def __repr__(self):
        return "Spy()"

    def learn(self, model, weights, bits):
        self.learned.append((weights[:, 1].astype(int).tolist(), bits.tolist()))
        return self

    def scores(self, model, weights):
        self.judged.append(weights[:, 1].astype(int).tolist())
        return weights[:, 0]


@dataclass(frozen=True)
class Memory:
    """Knows the models that it has seen by heart, and guesses at the others by their last weight."""

    known: dict = field(default_factory=dict)

    def learn(self, model, weights, bits):
        return Memory({row.tobytes(): 1.0 - 2 * bit for row, bit in zip(weights, bits, strict=True)})

    def scores(self, model, weights):
        return np.array([self.known.get(row.tobytes(), 1e-3 * row[-1]) for row in weights], np.float32)


@dataclass(frozen=True)
class Says:
    """Gives what it was made with."""

    scores_: object

    def learn(self, model, weights, bits):
        return self

    def scores(self, model, weights):
        return self.scores_


@pytest.fixture(scope="module")
def small():
    task = dpsub.data.from_arrays(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0], name="small")
    model = models.linear(task)
    assert model.parameters == PARAMETERS
    return model


def trained_models(seed=0, runs=RUNS, **attrs):
    """Models with no canary at all: the bits say nothing about them."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(runs, PARAMETERS)).astype(np.float32)
    weights[:, 1] = np.arange(runs)
    bits = rng.permutation(np.arange(runs) % 2).astype(np.int8)
    return xr.Dataset({"bit": ("run", bits), "weights": (("run", "parameter"), weights)}, attrs=attrs)


def ask(trained, model, by, **options):
    return distinguish(trained, model, by, progress=False, **options)


def test_held_out_learns_from_the_first_runs_and_judges_the_others(small):
    spy, trained = Spy(), trained_models()
    judged = ask(trained, small, spy, share=0.25)
    [(learned, bits)] = spy.learned
    assert learned == list(range(15))
    assert bits == trained.bit.values[:15].tolist()
    assert spy.judged == [list(range(15, RUNS))] == [judged.run.values.tolist()]
    assert (judged.learned_from, judged.judged, judged.protocol) == (15, 45, "held_out")
    np.testing.assert_array_equal(judged.bit, trained.bit[15:])
    np.testing.assert_array_equal(judged.score, trained.weights[15:, 0])
    assert (judged.score.dtype, judged.bit.dtype, judged.distinguisher) == (np.float32, np.int8, "Spy()")


@pytest.mark.parametrize("folds", [1, 3, 4])
def test_folds_are_judged_by_what_was_learned_from_those_before_them(small, folds):
    spy, trained = Spy(), trained_models()
    judged = ask(trained, small, spy, protocol="folds", folds=folds)
    assert len(spy.learned) == folds
    first = 21
    assert judged.run.values.tolist() == list(range(first, RUNS))
    assert np.unique(judged.fold).tolist() == list(range(1, folds + 1))
    for fold, ((learned, _), seen) in enumerate(zip(spy.learned, spy.judged, strict=True), start=1):
        assert seen == judged.run.values[judged.fold == fold].tolist()
        assert learned == list(range(seen[0]))
    counts = [len(one) for one, _ in spy.learned]
    assert judged.learned_from == (first if folds == 1 else counts)
    np.testing.assert_array_equal(judged.score, trained.weights[first:, 0])


def test_one_fold_is_the_same_as_holding_out(small):
    trained = trained_models()
    one, other = (ask(trained, small, Spy(), protocol=name, share=0.4, folds=1) for name in ("folds", "held_out"))
    xr.testing.assert_equal(one.drop_vars("fold"), other)


def test_in_sample_judges_what_it_learned_from_and_says_so(small):
    spy = Spy()
    judged = ask(trained_models(), small, spy, protocol="in_sample")
    assert spy.learned[0][0] == spy.judged[0] == list(range(RUNS))
    assert judged.score.in_sample.values.all()
    assert "in_sample" not in ask(trained_models(), small, spy).coords


@pytest.mark.parametrize("protocol", ["held_out", "folds"])
def test_scores_do_not_change_with_the_bits_of_judged_models(small, protocol):
    trained = trained_models(runs=200)
    before = ask(trained, small, Memory(), protocol=protocol)
    flipped = trained.copy(deep=True)
    last = before.run.values[before.fold == before.fold[-1]] if protocol == "folds" else before.run.values
    flipped.bit[last] = 1 - flipped.bit[last]
    after = ask(flipped, small, Memory(), protocol=protocol)
    np.testing.assert_array_equal(before.score, after.score)
    assert not (before.bit == after.bit).all()


def test_what_memorises_is_perfect_in_sample_and_knows_nothing_of_others(small):
    trained = trained_models(runs=400)
    judged = ask(trained, small, Memory(), protocol="in_sample")
    assert (judged.score > 0).values.tolist() == (judged.bit == 0).values.tolist()
    for protocol in ("held_out", "folds"):
        judged = ask(trained, small, Memory(), protocol=protocol)
        right = int(((judged.score > 0) == (judged.bit == 0)).sum())
        assert abs(right - judged.sizes["run"] / 2) < 4 * np.sqrt(judged.sizes["run"]) / 2


def test_runs_keep_their_numbers_and_attributes(small):
    trained = trained_models(model=repr(small), scenario="S4").assign_coords(run=np.arange(RUNS) + 100)
    judged = ask(trained, small, Spy())
    assert judged.run.values.tolist() == list(range(130, 160))
    assert judged.attrs["scenario"] == "S4"


@pytest.mark.parametrize("nothing", [False, True])
def test_the_canarys_score_is_the_audits(task, spec, nothing):
    model = models.mlp(task, (4,))
    pair = crafters.mislabeled(task, model, spec, seed=0)
    pair = pair.against_nothing(adjacency="add_remove") if nothing else pair
    options = {"metrics": ("weights",), "device": "cpu", "progress": False}
    trained = dpsub.audit(task, model, pair, spec, runs=40, seed=1, **options)
    judged = ask(trained, model, Canary(pair))
    np.testing.assert_allclose(judged.score, trained.score[20:, -1], rtol=1e-4, atol=1e-5)


def test_canaries_of_gradients_are_refused_and_reprs_tell_pairs_apart(task, model, spec, canary):
    with pytest.raises(ValueError, match="pair must be of records, got gradients, whose score is a displacement"):
        Canary(canary)
    with pytest.raises(ValueError, match=r"x must have shape \(records, 53\), got \(2, 3\)"):
        Canary(RECORDS).scores(model, np.zeros((2, model.parameters), np.float32))
    other = replace(RECORDS, z=(2 * np.ones(3), 0))
    assert repr(Canary(RECORDS)) == repr(Canary(replace(RECORDS))) != repr(Canary(other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda audited: audited.drop_vars("weights"), r"trained must hold the weights .*metrics=\(\"weights\",\)"),
        (lambda audited: audited.expand_dims(repeat=3), r"isel\(repeat=0\) if there are several, got"),
        (lambda audited: audited.assign_attrs(model="another"), "weights of model, Linear.* 12 parameters of another"),
        (lambda audited: audited.isel(parameter=slice(3)), "weights of model, Linear.*got 3 parameters"),
        (lambda audited: audited.assign(bit=audited.bit - 1), "bits of 0 and 1, got 30 runs with others: finish the"),
        (lambda audited: audited.assign(bit=audited.bit * 0), "at least 2 models of each world.* got 30 with z and 0"),
        (lambda audited: audited.assign(weights=audited.weights * np.nan), "weights must be finite numbers"),
        (lambda audited: audited.isel(run=slice(3)), "train more models, or give another share"),
        (lambda audited: audited.weights, "trained must be the dataset of an audit, got a DataArray"),
    ],
)
def test_what_is_no_audit_with_weights_is_refused(small, change, message):
    with pytest.raises(ValueError, match=message):
        ask(change(trained_models()), small, Spy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "cross"}, "protocol must be one of 'held_out', 'folds', 'in_sample', got 'cross'"),
        ({"share": 1.0}, "share must be > 0 and < 1, got 1.0"),
        ({"share": 0.999}, "got 0 with z and 0 with z_prime among the 0 judged"),
        ({"protocol": "folds", "folds": 30}, "at least 2 models of each world.* or give fewer folds"),
        ({"model": torch.nn.Linear(2, 2)}, "model must be a bank, got a Linear"),
        ({"by": Says(np.zeros(29))}, r"(?s)scores by .* must have shape \(30,\), got \(29,\)"),
        ({"by": Says(np.full(30, 1e300))}, "(?s)scores by .* must be finite numbers in float32"),
    ],
)
def test_bad_arguments_are_refused(small, options, message):
    with pytest.raises(ValueError, match=message):
        distinguish(**{"trained": trained_models(), "model": small, "by": Spy(), "progress": False, **options})
