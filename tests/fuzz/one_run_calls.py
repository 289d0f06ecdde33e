"""Calls about one training with many pairs: the pairs, their crafters, the audit, one's own dataset, the guesses."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import dpsub
from dpsub import CanaryPair, Pairs, audits, crafters, estimators
from fuzz import cast
from fuzz.audits_calls import HOSTILE_EXECUTION, ON_DEVICES, into_new
from fuzz.call import OMIT, Call
from fuzz.cast import FLAT, FOREIGN, HOSTILE, LINEAR, MODELS, ONE_HOT, SPEC, SPECS
from fuzz.hostile import ARRAYS, LITTLE, among

EYE = np.eye(3)
OF_RECORDS = crafters.mislabeled_pairs(FLAT, LINEAR, SPEC, pairs=3, seed=0)
OF_GRADIENTS = crafters.gradient_pairs(FLAT, LINEAR, SPEC, pairs=4, seed=0)
SINGLES = [CanaryPair((FLAT.x_train[slot], 0), (FLAT.x_train[slot], 2), slot, "S4") for slot in (1, 4)]
SPOILED = [
    [SINGLES[0]] * 2, [SINGLES[0], cast.GRADIENT], [SINGLES[0], 3], [SINGLES[0].against_nothing(adjacency="zero_out")],
    [SINGLES[0], cast.NATURAL],
    *([one] for one in FOREIGN),
    Pairs([0, 9], EYE[:2], EYE[1:], [0, 1], [1, 0]),
    Pairs([0, 2], EYE[:2], EYE[1:], [0, 7], [1, 0]),
    Pairs([0, 10**15], EYE[:2], EYE[1:], [0, 1], [1, 0]),
    Pairs([0, 2], 9 * np.eye(2), -np.eye(2), support=[1, 4], parameters=12),
    Pairs([0, 2], np.eye(2), -np.eye(2), support=[1, 4], parameters=13),
    Pairs(np.arange(6), FLAT.x_train, FLAT.x_train, FLAT.y_train, 1 + FLAT.y_train % 2),
]  # fmt: skip
ANY_PAIRS = st.one_of(LITTLE, among(SPOILED))
PLAIN = TensorDataset(torch.tensor(FLAT.x_train), torch.tensor(FLAT.y_train))
ANY_DATASET = st.one_of(LITTLE, among([PLAIN[:2], [1, 2], ARRAYS, [(1, 2)] * 9, [{"x": 1, "z": 2}] * 9]))
MODULES = [torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout())]
NO_MODULES = [torch.nn.Linear(2, 3), torch.nn.Linear(3, 2), torch.nn.LSTM(3, 3), torch.nn.Flatten(0)]
SCORES, BITS = np.random.default_rng(0).normal(size=(2, 20)), np.random.default_rng(1).integers(0, 2, (2, 20))


def is_pairs(result, /, **_):
    assert isinstance(result, Pairs)
    assert len(set(result.slots.tolist())) == len(result) == len(result.z) == len(result.z_prime)
    for values in (result.z, result.z_prime):
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert not values.flags.writeable
    assert len(result.fingerprint) == 16
    assert result[0].slot == result.slots[0]


def crafted(result, /, *, pairs, **_):
    is_pairs(result)
    assert len(result) == pairs


def audited(result, /, *, pairs, models=1, **_):
    m = len(Pairs.of(pairs))
    assert result.score.shape == result.bit.shape == (models, m)
    assert result.bit.dtype == np.int8
    assert np.isin(result.bit, (0, 1)).all()
    assert all(np.isfinite(values).all() for values in result.data_vars.values())


def wrapped(result, /, *, dataset, pairs, **_):
    assert len(result) == len(dataset)
    assert result.bits.shape == (len(Pairs.of(pairs)),)
    records = [one.values() if isinstance(one, dict) else one for one in (result[i] for i in range(len(result)))]
    assert all(np.isfinite(np.asarray(value)).all() for record in records for value in record)


def scored(result, /, **_):
    assert result.score.shape == result.bit.shape == (1, 3)
    assert np.isfinite(result.score).all()


OWN, OF_PROXY = [0, 1, 2] * 4, np.full((12, 3), 1 / 3)
LOGITS = np.random.default_rng(2).normal(size=(12, 3))


def drawn(result, /, *, labels, **_):
    assert len(result.records) == len(result.bits) > 0
    assert result.drawn == len(labels)
    assert np.array_equal(result.labels[np.arange(len(result.bits)), result.bits], np.asarray(labels)[result.records])


def scores_of_logits(logits, reference=None):
    return audits.proxy_labels(OWN, OF_PROXY, seed=0).scores(logits, reference=reference)


def scored_logits(result, /, **_):
    assert result.score.shape == result.bit.shape
    assert np.isfinite(result.score).all()
    assert dpsub.bound(result, delta=1e-5).epsilon >= 0


def guessed(result, /, *, scores, guesses, **_):
    assert np.all(np.equal(result.guesses, guesses))
    assert np.all(np.less_equal(0, result.correct))
    assert np.all(np.less_equal(result.correct, result.guesses))
    assert np.max(result.guesses) <= result.pairs == np.asarray(scores).size


def scores(module, reference=None):
    return audits.one_run_dataset(PLAIN, OF_RECORDS, seed=0).scores(module, reference=reference)


CRAFTER = {"task": [FLAT], "model": MODELS, "spec": SPECS, "pairs": [1, 3, np.int8(5)], "seed": [0, np.int64(5)]}
CALLS = [
    Call(
        "dpsub.Pairs",
        Pairs,
        {
            "slots": [[0, 4, 2], np.array([5, 6, 7]), (1.0, 2.0, 3.0)],
            "z": [EYE, EYE.tolist(), torch.eye(3)],
            "z_prime": [EYE, -EYE],
            "y": [[0, 1, 2], np.array([3, 4, 5])],
            "y_prime": [[1, 2, 0]],
            "support": [OMIT, None],
            "parameters": [OMIT, None],
            "scenario": [OMIT, "mine"],
            "details": [OMIT, {}, {"a": 1, "b": "text"}],
            "task": [OMIT, None, "0" * 16],
            "trace": [OMIT, {}, {"cosine": np.ones(2)}],
        },
        is_pairs,
    ),
    Call(
        "dpsub.Pairs of gradients",
        Pairs,
        {
            "slots": [[0, 4, 2]],
            "z": [EYE, 2 * EYE],
            "z_prime": [-EYE, EYE / 2 - 1],
            "support": [[0, 3, 5], np.array([5, 1, 2])],
            "parameters": [6, np.int8(9), 7.0],
        },
        is_pairs,
        hostile={"parameters": LITTLE},
    ),
    Call(
        "dpsub.Pairs.of",
        Pairs.of,
        {"pairs": [OF_RECORDS, SINGLES, tuple(SINGLES), list(OF_GRADIENTS)]},
        is_pairs,
        hostile={"pairs": ANY_PAIRS},
    ),
    *(
        Call(
            f"dpsub.crafters.{name}",
            getattr(crafters, name),
            CRAFTER | more,
            crafted,
            hostile=HOSTILE | {"pairs": LITTLE, "columns": LITTLE, "values": LITTLE, "only": LITTLE},
        )
        for name, more in (
            ("gradient_pairs", {}),
            ("mislabeled_pairs", {}),
            ("attribute_pairs", {"columns": [0, np.int8(2)], "values": [OMIT, None, (0.5, -1)], "only": [OMIT, None]}),
        )
    ),
    Call(
        "dpsub.crafters.attribute_pairs of a group",
        crafters.attribute_pairs,
        CRAFTER | {"task": [ONE_HOT], "columns": [(0, 1, 2)], "only": [OMIT, (0, 1)]},
        crafted,
        hostile=HOSTILE | {"pairs": LITTLE, "columns": LITTLE, "only": LITTLE},
    ),
    *(
        Call(
            f"dpsub{room}.audit_one_run",
            into_new(dpsub.audit_one_run),
            {
                "task": [FLAT],
                "model": [LINEAR],
                "pairs": [OF_RECORDS, OF_GRADIENTS, SINGLES],
                "spec": SPECS,
                "models": [OMIT, 2, np.int8(3), 1.0],
                "subtract_expected": [OMIT, True],
                "whiten": [OMIT, 0, 2, np.int8(1)],
                "metrics": [OMIT, (), ["accuracy"], ("weights", "accuracy")],
                "seed": [OMIT, 0, 7],
                "matmul_precision": [OMIT, "highest", "medium"],
                **ON_DEVICES,
            },
            audited,
            hostile=HOSTILE
            | HOSTILE_EXECUTION
            | {"pairs": ANY_PAIRS, "models": LITTLE, "whiten": LITTLE, "subtract_expected": among([False, 1, None])},
        )
        for room in ("", ".audits")
    ),
    *(
        Call(
            f"dpsub{room}.one_run_dataset",
            dpsub.one_run_dataset,
            {
                "dataset": [PLAIN, [(FLAT.x_train[0], 1)] * 6, [{"x": [0.0] * 3, "y": 1}] * 6],
                "pairs": [OF_RECORDS, SINGLES],
                "seed": [0, np.int64(5)],
                "keys": [("x", "y"), ["x", "y"]],
            },
            wrapped,
            hostile={
                "pairs": ANY_PAIRS,
                "dataset": ANY_DATASET,
                "keys": st.one_of(LITTLE, among([("x", "x"), ("x", "z"), (0, 1), "xy"])),
            },
        )
        for room in ("", ".audits")
    ),
    Call(
        "dpsub.audits.OneRunDataset.scores",
        scores,
        {"module": MODULES, "reference": [OMIT, None, torch.nn.Linear(3, 4)]},
        scored,
        hostile=dict.fromkeys(("module", "reference"), st.one_of(LITTLE, among(NO_MODULES))),
    ),
    *(
        Call(
            f"dpsub{room}.proxy_labels",
            dpsub.proxy_labels,
            {
                "labels": [OWN, np.array(OWN, np.int8), torch.tensor(OWN)],
                "probabilities": [OF_PROXY, OF_PROXY.tolist(), torch.tensor(OF_PROXY)],
                "tolerance": [OMIT, None, 0, 0.25, np.float32(1)],
                "proxy": [OMIT, "mine"],
                "seed": [0, np.int64(5)],
            },
            drawn,
            hostile={
                "labels": st.one_of(LITTLE, among([OWN[:3], np.array(OWN) + 1, np.array(OWN) - 1])),
                "probabilities": st.one_of(LITTLE, among([OF_PROXY[:3], 2 * OF_PROXY, -OF_PROXY, OF_PROXY[:, :2]])),
            },
        )
        for room in ("", ".audits")
    ),
    Call(
        "dpsub.audits.ProxyLabels.scores",
        scores_of_logits,
        {"logits": [LOGITS, torch.tensor(LOGITS).float()], "reference": [OMIT, None, -LOGITS]},
        scored_logits,
        hostile=dict.fromkeys(("logits", "reference"), st.one_of(LITTLE, among([LOGITS[1:], LOGITS * np.inf]))),
    ),
    Call(
        "dpsub.estimators.one_run_guesses",
        estimators.one_run_guesses,
        {
            "scores": [SCORES, SCORES.tolist(), torch.tensor(SCORES)],
            "bits": [BITS, BITS.astype(bool), BITS.tolist()],
            "guesses": [1, 8, np.int64(40), 6.0, [2, 8], (np.int8(3),), np.array([1, 2])],
            "centre": [OMIT, 0, -0.5, "median"],
        },
        guessed,
    ),
    Call(
        "dpsub.estimators.one_run_guesses on sides",
        estimators.one_run_guesses,
        {"scores": [SCORES[0], SCORES[:1]], "bits": [BITS[0], BITS[:1]], "guesses": [2, 20], "centre": ["sides"]},
        guessed,
    ),
]
