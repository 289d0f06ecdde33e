"""The same seeds give the same numbers as before: `python tests/test_same_numbers.py` writes what they are now.

Statistics are held to nine digits everywhere. Training is held bit for bit where torch and the processor are
those that the file was made with, elsewhere to what rounding may do to a few steps.
"""

import json
import math
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import slow_but

import dpsub
from dpsub import accounting, crafters, data, estimators, models

KEPT = Path(__file__).with_name("same_numbers.json")
SEVERAL = {"delta": 1e-5, "alpha": 0.05}
METRICS = ("distance", "gradient")


def kind():
    """What training's last bits depend on. Two processors with the same instructions may still differ in them."""
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = ("vendor_id", "cpu family", "model", "stepping")
    found = [re.search(rf"^{name}\s*: (.*)$", about, re.MULTILINE) for name in names]
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": [match[1] for match in found if match],
    }


def trained(left_out=""):
    """Scores, by the name of what was trained."""
    digits = data.digits(n_train=60, seed=3)
    rng = np.random.default_rng(0)
    few = data.from_arrays(rng.random((8, 60)), np.arange(8) % 3, x_aux=rng.random((9, 60)), y_aux=np.arange(9) % 3)
    images = data.from_arrays(
        rng.random((12, 1, 16, 16)), np.arange(12) % 4, x_aux=rng.random((5, 1, 16, 16)), y_aux=np.arange(5) % 4
    )
    cases = {
        "head": (digits, models.linear(digits)),
        "head in its records' span": (few, models.linear(few)),
        "network": (digits, models.mlp(digits, hidden=(12, 8))),
        "convnet": (images, models.convnet(images, size="small")),
    }
    cases = {name: case for name, case in cases.items() if name != left_out}
    found = {}
    for name, (task, model) in cases.items():
        for optimizer, q in (("sgd", 0.3), ("adam", 1.0)):
            spec = dpsub.DPSGD(2.0, 1.5, q, 4, 0.05, optimizer)
            for scenario, craft in crafters.BY_SCENARIO.items():
                canary = craft(task, model, spec, seed=5, **({"steps": 5} if scenario == "S3" else {}))
                for adjacency, pair in (
                    ("", canary),
                    (" against nothing", canary.against_nothing(adjacency="zero_out")),
                ):
                    if adjacency and scenario != "S4":
                        continue
                    options = {"runs": 6, "observe_every": 2, "repeats": 2, "seed": 7, "metrics": METRICS}
                    result = dpsub.audit(task, model, pair, spec, **options, device="cpu", progress=False)
                    for variable in ("score", "distance", "gradient", "bit"):
                        found[f"{name}, {optimizer}, {scenario}{adjacency}: {variable}"] = result[variable].values
    task, model = cases["head"]
    spec = dpsub.DPSGD(2.0, 1.5, 0.3, 4, 0.05)
    own = dense_pairs(model, 6)
    result = dpsub.audit(task, model, own[2], spec, runs=6, seed=7, metrics=METRICS, device="cpu", progress=False)
    for variable in ("score", "distance", "gradient", "bit"):
        found[f"head, gradients of many parameters: {variable}"] = result[variable].values
    for kind_of_pairs in ("gradient", "mislabeled", "dense"):
        if kind_of_pairs == "dense":
            pairs = own
        else:
            pairs = getattr(crafters, f"{kind_of_pairs}_pairs")(task, model, spec, pairs=6, seed=5)
        for count, whiten in ((1, 2), (130, 0)):
            options = {"models": count, "whiten": whiten, "seed": 7, "device": "cpu", "progress": False}
            result = dpsub.audit_one_run(task, model, pairs, spec, **options)
            for variable in ("score", "step_score", "bit"):
                name = f"{kind_of_pairs} pairs, {count} models, whitened {whiten} times: {variable}"
                found[name] = result[variable].values
    return found | stepwise(cases)


def dense_pairs(model, count):
    """Gradients of norm 1.2 and 0.9 that are neither opposite nor of few parameters."""
    z, z_prime = np.random.default_rng(2).normal(size=(2, count, 40))
    z, z_prime = (length * one / np.linalg.norm(one, axis=1)[:, None] for length, one in ((1.2, z), (0.9, z_prime)))
    support = np.arange(40) * model.parameters // 40
    return dpsub.Pairs(range(count), z, z_prime, support=support, parameters=model.parameters)


def stepwise(cases):
    """Scores of audits of steps, by what was trained and by canary."""
    found = {}
    for name in [name for name in cases if name != "head in its records' span"]:
        task, model = cases[name]
        for optimizer, q, rate, protocol in (("sgd", 0.3, 0.6, "coins"), ("adam", 1.0, 1.0, "two_trainings")):
            spec = dpsub.DPSGD(2.0, 1.5, q, 3, 0.05, optimizer)
            canaries = {
                "S2": crafters.gradient(task, model, spec, seed=5),
                "S4": crafters.mislabeled(task, model, spec, seed=5),
                "gradients of many parameters": dense_pairs(model, 1)[0],
                **{
                    f"{kind} {anew}": craft(task, model, spec, kind=kind, seed=5)
                    for anew, craft in (("fixed", crafters.fixed_gradient), ("anew", crafters.gradient_each_step))
                    for kind in ("dirac", "random")
                },
                **{
                    f"{kind} record anew": crafters.record_each_step(task, model, spec, kind=kind, seed=5)
                    for kind in ("mislabeled", "adversarial")
                },
            }
            for canary in list(canaries):
                canaries[f"{canary} against nothing"] = canaries[canary].against_nothing(adjacency="zero_out")
            for canary, pair in canaries.items():
                options = {"canary_rate": rate, "protocol": protocol, "trainings": 6, "seed": 7}
                result = dpsub.audit_steps(task, model, pair, spec, **options, device="cpu", progress=False)
                found[f"{name}, {optimizer}, steps of {canary}"] = result.score.values
    return found


def computed():
    """ε, δ, bounds and S1's scores."""
    found = {}
    for adjacency in ("substitute", "add_remove"):
        for q in (1.0, 0.1):
            mechanism = {"noise_multiplier": 3.0, "sample_rate": q, "steps": 50}
            asked = {**mechanism, "adjacency": adjacency}
            name = f"{adjacency}, q = {q}"
            result = dpsub.audit_worst_case(**asked, runs=500, seed=4)
            found[f"S1, {name}"] = np.concatenate([result.score.values[:, 0], result.bit.values])
            found[f"epsilon, {name}"] = accounting.epsilon_interval(**asked, delta=1e-5)
            found[f"delta, {name}"] = accounting.delta(**asked, epsilon=[0.5, 2.0])
            found[f"tradeoff, {name}"] = accounting.tradeoff(np.linspace(0, 1, 6), **asked)
            found[f"group, {name}"] = [accounting.group_privacy_epsilon(**mechanism, delta=1e-5)]
    rng = np.random.default_rng(9)
    bits = rng.integers(0, 2, 900)
    scores = rng.normal(size=(900, 2)) + (bits == 0)[:, None] * np.array([1.0, 2.0])
    for claim in estimators.CLAIMS:
        training = {"sample_rate": 0.1, "steps": [10], "adjacency": "substitute"} if claim.endswith("pld") else {}
        columns = scores[:, : len(training.get("steps", (1, 2)))]
        for rule in ("ranks", "split", "best", 0.5):
            if rule == "ranks" and claim not in ("gdp", "dp", "pld"):
                continue
            bounds = estimators.epsilon_lower_bound(columns, bits, claim=claim, rule=rule, **SEVERAL, **training)
            rates = ("threshold", "fpr_upper", "fnr_upper")
            shown = [(b.epsilon, b.mu, *map(b.details.get, rates), b.noise_multiplier) for b in bounds]
            found[f"bounds, {claim}, {rule}"] = [[math.nan if x is None else x for x in row] for row in shown]
    return found


def digest(values):
    return sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def kept():
    return json.loads(KEPT.read_text())


def test_what_is_computed_is_what_it_was(kept):
    found = computed()
    assert found.keys() == kept["computed"].keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, np.array(kept["computed"][name], float), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("left_out", slow_but(["", "convnet"], "convnet"))
def test_what_is_trained_is_what_it_was(kept, left_out):
    found = trained(left_out)
    assert found.keys() == {name for name in kept["trained"] if name.split(",")[0] != left_out}
    for name, values in found.items():
        before = kept["trained"][name]
        if kind() == kept["kind"]:
            assert digest(values) == before["sha256"], name
        np.testing.assert_allclose(
            np.ravel(values)[:4], before["first"], rtol=2e-2, atol=2e-3 * max(map(abs, before["first"])), err_msg=name
        )


if __name__ == "__main__":
    shown = {
        name: {"sha256": digest(values), "first": np.ravel(values)[:4].tolist()} for name, values in trained().items()
    }
    plain = {name: np.asarray(values, float).tolist() for name, values in computed().items()}
    KEPT.write_text(json.dumps({"kind": kind(), "trained": shown, "computed": plain}, indent=0) + "\n")
