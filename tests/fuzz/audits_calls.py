"""Calls of dpsub.audit and dpsub.audits. They run in a folder that `registry.prepare` has filled."""

import itertools
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

import dpsub
from dpsub import audits, crafters
from dpsub.audits import distinguishers
from fuzz import cast
from fuzz.call import OMIT, Call
from fuzz.cast import CANARIES, FLAT, HOSTILE, MODELS, SPEC, SPECS
from fuzz.checkers import anything, is_audit, of
from fuzz.hostile import ANY_PATH, LITTLE, among

COUNT = itertools.count()


class Twice(audits.Observer):
    """An observer of one's own."""

    name = "twice"
    long_name = "twice the score"

    def watch(self, bank, task, runs):
        class Watching(audits.Watch):
            def after_step(self):
                return 2 * bank.scores()

        return Watching()


def spoiled_observer(**attributes):
    return type("Spoiled", (Twice,), attributes)()


OBSERVERS = [
    spoiled_observer(**{name: value})
    for name, values in {
        "name": ("score", "", "a b", None, 1, "\ud800", "run", "accuracy"),
        "long_name": (None, 1, "\ud800"),
        "dims": ((), None, "run", ("run",), ("step", "run"), ("a", "step"), (1, 2)),
        "most_runs": (0, -1, "a", 2, 1.5, True),
        "copies": (None, -1, "a"),
        "attributes": (lambda *_: {"seed": "a"}, lambda *_: {1: object()}),
    }.items()
    for value in values
]


def audited(result, /, *, runs, repeats=1, **_):
    is_audit(result)
    assert result.sizes["run"] == runs
    assert result.sizes.get("repeat", 1) == repeats
    assert all(np.isfinite(values).all() for values in result.data_vars.values())


def seeds(result, /, *, seed, repeats, **_):
    assert len(result) == len(set(result)) == repeats
    assert result[0] == seed


def named(result, /, **_):
    assert repr(result).startswith("AdversarialSamples(y_prime=")
    assert len(repr(result)) < 250


def all_audits(result, /, **_):
    assert result
    for one in result.values():
        is_audit(one)


def status(result, /, **_):
    assert 0 <= result.stored <= result.models
    assert str(result)


def sweep(**arguments):
    if arguments.get("results") == "results":
        arguments["results"] = f"results-{next(COUNT)}"
    return audits.sweep(**arguments)


def into_new(function):
    """The function that audits, with a store of its own for "new"."""

    def call(**arguments):
        if arguments.get("store") == "new":
            arguments["store"] = f"new-{next(COUNT)}.db"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* runs failed")
            return function(**arguments)

    return call


def one_normal(bit, seed):
    return np.random.default_rng(seed).normal(1 - 2 * bit)


def fails_at_times(bit, seed):
    return one_normal(bit, seed) if seed % 3 else None


def two_scores(bit, seed):
    return np.random.default_rng(seed).normal(1 - 2 * bit, size=2)


def audited_training(result, /, *, runs, **_):
    is_audit(result)
    failed = len(result.attrs.get("failed_runs", ()))
    assert result.sizes["run"] == runs - failed > 0
    assert result.attrs["failed_with_z"] + result.attrs["failed_with_z_prime"] == failed


def audited_steps(result, /, *, spec, trainings=1, **_):
    assert result.score.dims == result.bit.dims == ("observation",)
    assert result.sizes["observation"] == trainings * spec.steps
    assert (result.score.dtype, result.bit.dtype) == (np.float32, np.int8)
    assert np.isfinite(result.score).all()
    assert np.isin(result.bit, (0, 1)).all()


def audited_mechanism(result, /, *, steps=2_000, gradients=None, **_):
    assert result.score.dims == result.bit.dims == result.noise.dims == ("observation",)
    assert result.sizes["observation"] == (steps if gradients is None else min(steps, len(gradients)))
    assert all(np.isfinite(values).all() for values in result.data_vars.values())
    assert np.isin(result.bit, (0, 1)).all()


def private_step(gradients):
    return np.random.default_rng().normal(size=gradients.shape[1]) + gradients.sum(axis=0)


def loaded(result, /, *, partial=False, **_):
    assert np.isin(result.bit, (-1, 0, 1) if partial else (0, 1)).all()
    assert (result.score.isnull() == (result.bit < 0)).all()


FINAL = np.random.default_rng(0).normal(size=(4, cast.LINEAR.parameters))
SPOILED_STEPS = [lambda gradients, one=one: one for one in (None, "a", np.zeros(4), [[1]], np.full(3, np.nan))]
STORES = ["half.db", "damaged.db", "other.db", "empty.db", "old.zarr"]
ANY_STORE = st.one_of(ANY_PATH, among(STORES))
ANY_CLIENT = among([0, 1.5, object(), b"tcp", [], {}, True, len])
ANY_NUMBER = among([0, -1, 1.5, "a", None, True, 10**9, float("nan")])
EXECUTION = {
    "store": [OMIT, OMIT, OMIT, "new"],
    "client": [OMIT, None],
    "repair": [OMIT, False, True],
    "progress": [False],
}
ON_DEVICES = {"device": [OMIT, "cpu", "auto"], "allow_mix": [OMIT, False, True], **EXECUTION}
HOSTILE_EXECUTION = {"store": ANY_STORE, "client": ANY_CLIENT, "processes": ANY_NUMBER}
OPTIONS = {
    "runs": [1, 2, 4, np.int8(3), 5.0],
    "observe_every": [OMIT, 1],
    "metrics": [OMIT, (), ("accuracy",), ["distance", "gradient"], ("weights",), (Twice(),), {"accuracy"}],
    "coordinates": [OMIT, "auto", "all", "span"],
    "matmul_precision": [OMIT, "highest", "high", "medium"],
    **ON_DEVICES,
}
ANY_METRICS = st.one_of(
    LITTLE, among(OBSERVERS).map(lambda one: [one]), st.lists(among([*OBSERVERS, "weights", "distance"]), max_size=2)
)
MANY_HOSTILE = HOSTILE | {"runs": LITTLE, "repeats": LITTLE, "metrics": ANY_METRICS} | HOSTILE_EXECUTION

CALLS = [
    *(
        Call(
            f"dpsub{room}.audit",
            into_new(dpsub.audit),
            {
                "task": [FLAT],
                "model": MODELS,
                "canary": CANARIES,
                "spec": SPECS,
                "seed": [OMIT, 0, 7],
                "repeats": [OMIT, OMIT, 1, 2],
                "score": [OMIT, "canary"],
                "learning_runs": [OMIT, 32, np.int16(300)],
                **OPTIONS,
            },
            audited,
            hostile=MANY_HOSTILE,
        )
        for room in ("", ".audits")
    ),
    Call(
        "dpsub.audit that learns its score",
        into_new(dpsub.audit),
        {
            "task": [FLAT],
            "model": MODELS,
            "canary": CANARIES,
            "spec": SPECS,
            "score": ["learned"],
            "learning_runs": [32, np.int8(33), 40.0],
            "repeats": [OMIT, 2],
            **OPTIONS,
            "coordinates": [OMIT, "auto", "all"],
        },
        audited,
        hostile=MANY_HOSTILE | {"learning_runs": LITTLE},
    ),
    *(
        Call(
            f"dpsub{room}.audit_steps",
            into_new(dpsub.audit_steps),
            {
                "task": [FLAT],
                "model": MODELS,
                "canary": CANARIES,
                "spec": SPECS,
                "canary_rate": [OMIT, 1.0, 0.25, np.float32(0.5), 1],
                "trainings": [OMIT, 2, np.int8(2), 4.0],
                "protocol": [OMIT, "coins"],
                "seed": [OMIT, 0, 7],
                "matmul_precision": OPTIONS["matmul_precision"],
                **ON_DEVICES,
            },
            audited_steps,
            hostile=HOSTILE | HOSTILE_EXECUTION | {"trainings": LITTLE},
        )
        for room in ("", ".audits")
    ),
    *(
        Call(
            f"dpsub{room}.audit_training{variant}",
            into_new(dpsub.audit_training),
            {
                "train": trains,
                "runs": [1, 5, np.int8(3), 4.0],
                "adjacency": ["substitute", "add_remove", "zero_out"],
                "name": ["a name", "ε"],
                "parameters": [OMIT, None, {}, {"q": 0.5, "fine": np.True_, "of": "µ"}],
                "seed": [OMIT, 0, 7],
                "steps": steps,
                "retry": [OMIT, False, True],
                "processes": [OMIT, 1],
                **EXECUTION,
            },
            audited_training,
            hostile=HOSTILE_EXECUTION | {"runs": LITTLE},
        )
        for room in ("", ".audits")
        for variant, trains, steps in (
            ("", [one_normal, one_normal, fails_at_times], [OMIT, None, [3]]),
            (" with steps", [two_scores], [(2, 4), [np.int64(1), 100.0]]),
        )
    ),
    *(
        Call(
            f"dpsub{room}.audit_mechanism",
            dpsub.audit_mechanism,
            {
                "step": [private_step],
                "max_grad_norm": [1, 0.5, np.float32(2)],
                "adjacency": ["substitute", "add_remove", "zero_out"],
                "steps": [1, 3, np.int8(5), 4.0],
                "batch_size": [OMIT, 2, np.int8(4)],
                "parameters": [3, [1, 2], np.array([2, 1])],
                "divided_by": [OMIT, 1, 0.5],
                "noise_multiplier": [OMIT, None, 0.1, 1],
                "gradients": [OMIT, None, [np.ones((2, 3))], [[[1, 2, 3]], [[0, 0, 1]]]],
                "canary_norm": [OMIT, 1, 20.0],
                "alpha": [OMIT, 0.05, 0.2],
                "seed": [OMIT, 0, 7],
                "progress": [False],
            },
            audited_mechanism,
            hostile={
                "step": st.one_of(LITTLE, among(SPOILED_STEPS)),
                "steps": LITTLE,
                "batch_size": LITTLE,
                "parameters": LITTLE,
                "gradients": st.one_of(LITTLE, st.lists(LITTLE, max_size=2)),
                "progress": LITTLE,
            },
        )
        for room in ("", ".audits")
    ),
    Call(
        "dpsub.audits.repeat_seeds",
        audits.repeat_seeds,
        {"seed": [0, 5, np.uint64(2**63)], "repeats": [1, 2, np.int8(3)]},
        seeds,
        hostile={"repeats": LITTLE},
    ),
    Call(
        "dpsub.audits.load",
        audits.load,
        {"store": ["whole.db", Path("whole.db"), "half.db"], "partial": [OMIT, False, True]},
        loaded,
        hostile={"store": ANY_STORE},
    ),
    Call("dpsub.audits.made_here", audits.made_here, {"device": [OMIT, "auto", "cpu"]}, anything),
    Call(
        "dpsub.audits.status",
        audits.status,
        {"store": ["whole.db", "half.db", Path("damaged.db")]},
        status,
        hostile={"store": ANY_STORE},
    ),
    Call(
        "dpsub.distinguishers.AdversarialSamples",
        distinguishers.AdversarialSamples,
        {
            "start": [(np.zeros(3), 1), ([0.5, 0, 1], np.int8(2))],
            "y_prime": [OMIT, None, 0],
            "loss": [OMIT, "ude", "fisher"],
            "margin": [OMIT, 0, np.float32(0.25)],
            "steps": [OMIT, 0, np.int8(3)],
            "learning_rate": [OMIT, 0.01, 1],
            "optimizer": [OMIT, "adam", "sgd"],
            "bounds": [OMIT, None, (0, 1), (np.zeros(3), 2.0)],
            "device": [OMIT, "auto", "cpu"],
        },
        named,
    ),
    Call(
        "dpsub.distinguishers.AdversarialSamples.learn",
        distinguishers.AdversarialSamples((np.zeros(3), 1), steps=2, device="cpu").learn,
        {
            "model": [cast.LINEAR],
            "weights": [FINAL, FINAL.tolist()],
            "bits": [[0, 1, 0, 1], np.array([1, 0, 0, 1], dtype=np.int8)],
        },
        of(crafters.AdversarialSample),
        hostile=HOSTILE,
    ),
    Call(
        "dpsub.audits.load_all",
        audits.load_all,
        {"folder": ["audits", Path("audits")], "label": [OMIT, "{scenario}", "q = {sample_rate:g}", "{steps} steps"]},
        all_audits,
        hostile={"folder": ANY_PATH},
    ),
    Call(
        "dpsub.audits.sweep",
        sweep,
        {
            "task": [FLAT],
            "model": MODELS,
            "specs": [{"q = 0.5": SPEC}, {"a": SPECS[1], "b": SPECS[3]}],
            "scenarios": [{"S2": crafters.gradient}, {"S4": crafters.mislabeled}],
            "seed": [OMIT, 0, 3],
            "results": [OMIT, None, "results"],
            **{name: OPTIONS[name] for name in OPTIONS if name not in ("store", "execution")},
        },
        all_audits,
        hostile=MANY_HOSTILE
        | {
            "results": ANY_PATH,
            "specs": st.one_of(LITTLE, among([{"a/b": SPEC}, {"..": SPEC}, {"\ud800": SPEC}, {1: SPEC}, {"q": None}])),
            "scenarios": st.one_of(
                LITTLE,
                among(
                    [{"S2": None}, {"../S2": crafters.gradient}, {1: crafters.gradient}, {"S2": lambda *_, **__: None}]
                ),
            ),
        },
    ),
]


def prepare(folder):
    """Fill a folder with stores: whole, in part, damaged, not dpsub's; and a folder of audits."""
    folder = Path(folder)
    options = {"runs": 130, "device": "cpu", "progress": False}
    (folder / "audits").mkdir()
    for name in ("whole", "half", "damaged", "audits/one"):
        dpsub.audit(FLAT, cast.LINEAR, cast.MISLABELED, SPEC, **options, store=folder / f"{name}.db")
    for name, statement in (
        ("half", "DELETE FROM shards WHERE number = 1"),
        ("damaged", "UPDATE shards SET data = x'00'"),
        ("other", "CREATE TABLE letters (x)"),
    ):
        with closing(sqlite3.connect(folder / f"{name}.db")) as store, store:
            store.execute(statement)
    (folder / "empty.db").touch()
    for name in ("folder", "old.zarr"):
        (folder / name).mkdir()
    (folder / "old.zarr/zarr.json").write_text("{}")
    (folder / "file").write_text("text")
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.random((9, 3)),
        "y_train": np.arange(9) % 2,
        "x_test": rng.random((2, 3)),
        "y_test": [0, 1],
    }
    np.savez(folder / "features.npz", **arrays)
