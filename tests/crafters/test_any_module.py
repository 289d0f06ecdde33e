"""Every crafter: what they all refuse, and canaries for modules and losses as users write them."""

import itertools
from dataclasses import replace
from functools import partial
from inspect import signature

import numpy as np
import pytest
import torch
from cases import slow_but
from modules_of_others import ACCEPTED
from torch import nn

from dpsub import DPSGD, CanaryPair, Pairs, audit, audit_one_run, audit_steps, crafters, data, models
from dpsub.crafters.reference_model import compare_gradients
from dpsub.models.interface import losses_of
from studies.batches.canaries import mean_gradient
from studies.one_run.pairs import natural_pairs, unused_feature_pairs

SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=1, learning_rate=0.05)
QUICK = {"device": "cpu", "progress": False}
FLOAT32 = ("numbers", "weighted loss", "weighted loss object")
# Those that are tested each time.
NAMES = ("numbers", "weighted loss object", "attention", "bag of words", "activations", "frozen")
# What crafts along the gradient by the features, which words do not have, nor some operations twice.
ONCE = ("adversarial", "adversarial sample")
TWICE = ("crafted_input", "robust_input", "crafted")
NO_FEATURES = {
    **dict.fromkeys(("lstm", "gru", "embedding", "embedding with padding", "bag of words"), ONCE + TWICE),
    **dict.fromkeys(("distances", "activations", "margins"), TWICE),
}


def adversarial_sample(task, model, spec, *, seed):
    weights = model.initial_parameters(6, torch.Generator())
    weights = weights + 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed))
    sample = crafters.adversarial_sample(model, weights, [0, 1] * 3, start=(task.x_train[0], 0), steps=2)
    assert np.isfinite(sample.scores(model, weights)).all()
    return sample


def pretrained(task, model, spec, *, seed):
    start = crafters.pretrained_start(task, model, seed=seed, epochs=1)
    assert np.isfinite(start).all()
    return start


def takes_no_more(name):
    """Whether a crafter needs nothing but task, model, spec and seed."""
    parameters = signature(getattr(crafters, name)).parameters.values()
    return [given.name for given in parameters if given.default is given.empty] == ["task", "model", "spec", "seed"]


# A new crafter of this kind is tested without a line here.
PLAIN = [name for name in crafters.__all__ if name not in ("BY_SCENARIO", "reference") and takes_no_more(name)]
CRAFTERS = {
    **{name: getattr(crafters, name) for name in PLAIN},
    "crafted_input": partial(crafters.crafted_input, steps=10, learning_rate=1.0),
    "robust_input": partial(crafters.robust_input, steps=10),
    "mean gradient": mean_gradient,
    "attribute": partial(crafters.attribute, columns=5),
    "fixed gradient": partial(crafters.fixed_gradient, kind="random"),
    "gradient each step": partial(crafters.gradient_each_step, kind="dirac"),
    "mislabeled each step": partial(crafters.record_each_step, kind="mislabeled"),
    "blank each step": partial(crafters.record_each_step, kind="blank"),
    "adversarial": partial(crafters.record_each_step, kind="adversarial"),
    "crafted": partial(crafters.record_each_step, kind="crafted", steps=2),
    "gradient pairs": partial(crafters.gradient_pairs, pairs=2),
    "mislabeled pairs": partial(crafters.mislabeled_pairs, pairs=2),
    "natural pairs": partial(natural_pairs, pairs=2),
    "attribute pairs": partial(crafters.attribute_pairs, pairs=2, columns=5),
    "unused feature pairs": partial(unused_feature_pairs, pairs=2),
    "adversarial sample": adversarial_sample,
    "pretrained start": pretrained,
}

AUDITED = ("gradient", "mislabeled", "gradient each step", "crafted", "gradient pairs", "natural pairs")
SEEDED = [name for name in CRAFTERS if name != "adversarial sample"]


def flat_task():
    """Records of flat features, of which four are 0 throughout."""
    rng = np.random.default_rng(3)
    x, y = rng.random((20, 64)), rng.integers(0, 4, 20)
    x[:, 60:] = 0
    return data.from_arrays(x[:10], y[:10], x_aux=x[10:], y_aux=y[10:], num_classes=10)


@pytest.mark.parametrize("name", SEEDED)
def test_a_whole_seed_chooses_the_canary_and_torch_is_left_alone(name):
    task = flat_task()
    model, before = models.mlp(task, (4,)), torch.get_rng_state()
    made = [CRAFTERS[name](task, model, SPEC, seed=seed) for seed in (4, 4.0, 5, 6, 7)]
    one, again, *others = (canary.tobytes() if name == "pretrained start" else canary.fingerprint for canary in made)
    assert one == again
    assert {one} != {*others}
    assert torch.equal(before, torch.get_rng_state())


SINGLE = {name: CRAFTERS[name] for name in ("blank", "in_distribution", "clipbkd", "mislabeled", "natural")}
SINGLE["crafted_input"] = partial(crafters.crafted_input, steps=60, learning_rate=0.5)


ATTACKED = [*itertools.product(("linear", "mlp", "convnet"), SINGLE)]


@pytest.mark.parametrize(
    ("name", "craft"), slow_but(ATTACKED, *ATTACKED[:12], ("convnet", "mislabeled"), ("convnet", "crafted_input"))
)
def test_scores_of_records_speak_for_z(attacked, name, craft, spec):
    (task, model), setting = attacked[name], spec(noise_multiplier=0.05, steps=8, learning_rate=0.5)
    model = model.starting_from(model.flat(model.initial_parameters(1, torch.Generator().manual_seed(0)))[0])
    pair = SINGLE[craft](task, model, setting, seed=0)
    assert pair.task == task.fingerprint
    assert pair.details.get("cosine", 0) < 0.2
    alone = pair.against_nothing(adjacency="add_remove") if pair.scenario[0] != "S" else pair
    result = audit(task, model, alone, setting, runs=32, seed=1, observe_every=8, **QUICK)
    with_z, others = (result.score.values[result.bit.values == bit, -1] for bit in (0, 1))
    error = np.sqrt(with_z.var() / len(with_z) + others.var() / len(others))
    assert with_z.mean() - others.mean() > 4 * error


@pytest.mark.parametrize("name", SEEDED)
def test_a_model_of_another_task_is_named(name):
    with pytest.raises(ValueError, match="model must fit the task"):
        CRAFTERS[name](flat_task(), models.Linear(3, 10), SPEC, seed=0)


@pytest.mark.parametrize(
    "name", ["natural", "natural pairs", "in_distribution", "mislabeled each step", "pretrained start"]
)
def test_auxiliary_records_must_be_there_and_be_no_private_ones(name):
    task = flat_task()
    bare = replace(task, x_aux=task.x_aux[:0], y_aux=task.y_aux[:0])
    mixed = replace(task, x_aux=np.concatenate([task.x_aux, task.x_train[:2]]), y_aux=np.append(task.y_aux, [0, 1]))
    for wrong, message in (
        (bare, "task must have auxiliary .* give x_aux and y_aux"),
        (
            mixed,
            "task must have auxiliary records that are not private ones, got 2 of 12 with the features of a private",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            CRAFTERS[name](wrong, models.linear(task), SPEC, seed=0)


@pytest.fixture(
    scope="module",
    params=slow_but(ACCEPTED, *NAMES),
)
def accepted(request):
    """A module's name, a task, and a bank."""
    task = flat_task()
    make, loss = ACCEPTED[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Unflatten(1, (8, 8)), make())
    return request.param, task, models.from_module(module, task, loss=loss)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_crafter_attacks_modules_or_says_why_not(accepted):
    module, task, model = accepted
    for name, craft in CRAFTERS.items():
        if name in NO_FEATURES.get(module, ()):
            with pytest.raises(ValueError, match="model must be differentiable by its records' features"):
                audit_steps(task, model, craft(task, model, SPEC, seed=0), SPEC, **QUICK)
            continue
        canary = craft(task, model, SPEC, seed=0)
        if name in AUDITED:
            run = {CanaryPair: partial(audit, runs=4), Pairs: audit_one_run}.get(type(canary), audit_steps)
            options = {"metrics": ("weights", "distance", "gradient")} if name == "mislabeled" else {}
            assert np.isfinite(run(task, model, canary, SPEC, **options, **QUICK).score).all(), name


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_are_compared_as_records_one_by_one_have_them(accepted):
    name, task, model = accepted
    found = crafters.reference(task, model, SPEC, seed=0)
    assert found.theta.dtype == (torch.float32 if name in FLOAT32 else torch.float64)
    module, loss = model.module(model.flat(found.theta)[0]), losses_of(model)  # in float32
    trained = [one for one in module.parameters() if one.requires_grad]

    def gradient(x, y):
        [own] = loss(module(torch.tensor(x)[None]), torch.tensor([y]))
        return torch.cat([one.flatten() for one in torch.autograd.grad(own, trained, materialize_grads=True)]).detach()

    target = gradient(*found.z)
    others = torch.stack([gradient(x, int(y)) for x, y in zip(task.x_aux, task.y_aux, strict=True)])
    ours = compare_gradients(found, task.x_aux, task.y_aux)
    np.testing.assert_allclose(ours.norm, target.norm(), rtol=1e-4)
    np.testing.assert_allclose(ours.ratio, others.norm(dim=1) / target.norm(), rtol=1e-4, atol=1e-9)
    told = others.norm(dim=1) > 1e-6 * target.norm()
    cosine = others[told] @ target / (others[told].norm(dim=1) * target.norm())
    np.testing.assert_allclose(ours.cosine[told], cosine, atol=1e-4)
