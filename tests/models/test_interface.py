"""What `Model` asks for, of all models."""

import copy

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from dpsub import DPSGD, audit, data, models
from dpsub.models.interface import check_fits, outputs_of


def by_autograd(model, parameters, task, i):
    """The gradient of one record of one model, in the bank's flat order, by a path that shares no code with it."""
    module = model.module(parameters)
    loss = nn.functional.cross_entropy(
        module(torch.tensor(task.x_train[i : i + 1])), torch.tensor(task.y_train[i : i + 1])
    )
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    if isinstance(model, models.Linear):
        return torch.cat([gradients[0].T.flatten(), gradients[1]])
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_all_models_are_of_the_interface(bench):
    assert isinstance(bench.model, models.Model)
    check_fits(bench.model, bench.task)


def test_clipped_sum_is_the_sum_of_clipped_per_record_gradients(bench, sampled):
    task, model = bench.task, bench.model
    gradients = torch.stack([
        torch.stack([by_autograd(model, model.flat(bench.theta)[run], task, i) for i in range(12)]) for run in range(3)
    ])  # fmt: skip
    norms = gradients.norm(dim=2, keepdim=True)
    some = float(norms.median())
    for max_grad_norm in (0.05, some, 1e3):  # all are clipped, some, none
        clipped = gradients * (max_grad_norm / (norms + 1e-6)).clamp(max=1)
        expected = (clipped * sampled.T[..., None]).sum(dim=1)
        for cut in bench.gathering:
            total = model.flat(bench.sum(sampled, max_grad_norm, cut))
            assert float((total - expected).norm() / expected.norm()) < 2e-6
    found = model.gradient_norms(bench.theta, bench.inputs, bench.labels)
    torch.testing.assert_close(found, norms[..., 0].T, atol=1e-6, rtol=1e-5)


def test_weights_of_records_add_up(bench, sampled):
    weights = torch.randn(sampled.shape, generator=torch.Generator().manual_seed(1))
    known = sum(
        bench.model.flat(
            bench.model.clipped_sum(bench.theta, bench.inputs[i : i + 1], bench.labels[i : i + 1], None, 1.0)
        )
        * weights[i, :, None]
        for i in range(12)
    )
    for cut in bench.gathering:
        torch.testing.assert_close(bench.model.flat(bench.sum(weights, model=cut)), known, atol=1e-5, rtol=1e-4)


def test_the_full_batch_is_the_batch_with_everyone(bench):
    everyone = torch.ones(12, 3, dtype=torch.bool)
    full = bench.sum(None)
    for cut in bench.gathering:
        torch.testing.assert_close(full, bench.sum(everyone, model=cut), atol=1e-5, rtol=1e-5)


def test_an_empty_batch_sums_to_nothing(bench):
    nobody = torch.zeros(12, 3, dtype=torch.bool)
    for cut in bench.gathering:
        assert not bench.sum(nobody, model=cut).any()


def test_a_sum_replaces_whatever_was_in_its_place(bench, sampled):
    for cut in bench.gathering:
        for mask in (None, sampled):
            place = torch.full_like(bench.theta, torch.nan)
            total = bench.sum(mask, model=cut, out=place)
            assert total.data_ptr() == place.data_ptr()
            torch.testing.assert_close(place, bench.sum(mask, model=cut), atol=0, rtol=0)


def test_batches_of_different_sizes_are_summed_each_by_itself(bench):
    sampled = torch.zeros(12, 3, dtype=torch.bool)
    sampled[5, 0] = sampled[3:11, 2] = True  # one record, none, eight
    for cut in bench.gathering:
        found = bench.model.flat(bench.sum(sampled, model=cut))
        assert not found[1].any()
        for run in (0, 2):
            here = sampled[:, run]
            alone = bench.model.clipped_sum(bench.theta, bench.inputs[here], bench.labels[here], None, 1.0)
            torch.testing.assert_close(found[run], bench.model.flat(alone)[run], atol=1e-6, rtol=1e-5)


def test_one_model_of_the_bank_is_a_torch_module(bench):
    model, x = bench.model, torch.tensor(bench.task.x_train[:12])
    logits = model.logits(bench.theta, bench.inputs)
    assert logits.shape == (12, model.classes, 3)
    for run in range(3):
        parameters = model.flat(bench.theta)[run].clone()
        module = model.module(parameters)
        torch.testing.assert_close(module(x), logits[..., run], atol=1e-5, rtol=1e-5)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        assert parameters.any(), "the module must not share the parameters it was given"


def test_the_first_models_are_the_first(bench):
    first = bench.model.first(bench.theta, 2)
    logits = bench.model.logits(bench.theta, bench.inputs)
    torch.testing.assert_close(bench.model.logits(first, bench.inputs), logits[..., :2], atol=1e-6, rtol=1e-5)


def test_flat_parameters_are_a_view(bench):
    theta = bench.theta.clone()
    bench.model.flat(theta)[1] = 0
    assert [bool(part.any()) for part in bench.model.flat(theta)] == [True, False, True]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_parameters_may_come_as_anything_flat(bench_of, name):
    bench = bench_of(name)
    model, x = bench.model, torch.tensor(bench.task.x_train[:12])
    vector = torch.linspace(-1, 1, model.parameters, requires_grad=True)
    theta = model.initial_parameters(1, torch.Generator())
    model.flat(theta)[0] = vector.detach()
    expected = model.logits(theta, bench.inputs)[..., 0]
    kinds = {"array": vector.detach().numpy(), "list": vector.tolist(), "wide": vector.detach().double()}
    for given in (vector, xr.DataArray(kinds["array"]), *kinds.values()):
        torch.testing.assert_close(model.module(given)(x), expected, atol=1e-5, rtol=1e-5)
    for wrong in (model.module(), model.module().state_dict(), [1e300] * len(vector), [np.nan] * len(vector)):
        with pytest.raises(ValueError, match="parameters must be finite numbers in float32, got"):
            model.module(wrong)
    with pytest.raises(ValueError, match=r"parameters must have shape \(.*,\), got"):
        model.module(vector[:-1])


def test_a_task_of_another_shape_is_refused(bench):
    with pytest.raises(ValueError, match="model must fit the task"):
        check_fits(bench.model, data.from_arrays(np.ones((4, 7)), [0, 1, 2, 9]))


@pytest.mark.parametrize("make", [models.linear, models.mlp, models.convnet, lambda task: check_fits(LINEAR, task)])
def test_what_is_no_task_is_named(make):
    with pytest.raises(ValueError, match="task must be a dpsub.data.Task, got a str"):
        make("digits")


LINEAR = models.Linear(3, 2)


def test_a_module_with_given_parameters_draws_nothing(bench):
    before = torch.random.get_rng_state()
    bench.model.module(np.zeros(bench.model.parameters))
    assert torch.equal(torch.random.get_rng_state(), before)


NAMES = ["linear", "deep relu mlp", "mlp on images", "convnet", "large relu convnet"]
MODULES = ["attention", "gru", "residual", "linear"]
OF_TOKENS = ["gru"]  # it rounds its records
CASES = [("cast", name) for name in NAMES] + [("module", name) for name in MODULES]


@pytest.fixture
def trained(cast, banks_of_modules):
    """A model, weights of four of them, and six records."""

    def make(kind, name):
        task, model = (cast if kind == "cast" else banks_of_modules)[name]
        generator = torch.Generator().manual_seed(1)
        weights = model.flat(model.initial_parameters(4, generator)).clone()
        weights += 0.1 * torch.randn(weights.shape, generator=generator)
        return model, weights, torch.tensor(task.x_train[:6])

    return make


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_answers_are_those_of_each_module(trained, case):
    model, weights, x = trained(*case)
    found = outputs_of(model, weights, x)
    assert found.shape == (4, 6, model.classes)
    for answers, own in zip(found, weights, strict=True):
        torch.testing.assert_close(answers, model.module(own)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] not in OF_TOKENS], ids=" ".join)
def test_gradients_by_records_are_those_of_each_module(trained, case):
    model, weights, x = trained(*case)
    chosen = torch.randn(4, 6, model.classes, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    (found,) = torch.autograd.grad((chosen * outputs_of(model, weights, x)).sum(), x)
    each = [(part * model.module(own)(x)).sum() for part, own in zip(chosen, weights, strict=True)]
    (expected,) = torch.autograd.grad(sum(each), x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert expected.abs().max() > 1e-3


def test_the_scores_of_an_audit_are_computed_from_its_weights(cast, canary_of):
    task, model = cast["mlp"]
    pair = canary_of("mlp", "record")
    result = audit(
        task, model, pair, DPSGD(1.0, 1.0, 1.0, 3, 0.5), runs=5, metrics=["weights"], device="cpu", progress=False
    )
    x = torch.tensor(np.stack([pair.z.x, pair.z_prime.x]))
    outputs = outputs_of(model, torch.tensor(result.weights.values), x)
    logs = torch.log_softmax(outputs, dim=2)

    def logit(record, label):
        log = logs[:, record, label]
        return log - torch.log1p(-log.exp())

    np.testing.assert_allclose(
        logit(0, pair.z.y) - logit(1, pair.z_prime.y), result.score.values[:, -1], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, x: (w[:, 1:], x), r"weights must have shape \(runs, \d+\), got \(4, \d+\)"),
        (lambda w, x: (w.numpy(), x), r"weights must be a torch.Tensor, got a ndarray: use torch.tensor\(weights\)"),
        (lambda w, x: (w, x[:, 1:]), r"x must have shape \(records, \d+\), got \(6, \d+\)"),
    ],
)
def test_what_does_not_fit_is_named(trained, change, message):
    model, weights, x = trained("cast", "deep relu mlp")
    with pytest.raises(ValueError, match=message):
        outputs_of(model, *change(weights, x))
    with pytest.raises(ValueError, match="model must be a bank, got a Sequential: make one"):
        outputs_of(model.module(weights[0]), weights, x)


@pytest.mark.parametrize("case", [("cast", "linear"), ("cast", "deep relu mlp"), ("module", "attention")], ids=" ".join)
def test_a_bank_may_start_where_it_is_told(trained, case):
    model, weights, x = trained(*case)
    here, there = weights[:2].numpy()
    started = model.starting_from(here)
    theta = started.initial_parameters(3, torch.Generator())
    np.testing.assert_array_equal(started.flat(theta), np.tile(here, (3, 1)))
    for module in (started.module(), started.module(here)):
        torch.testing.assert_close(module(x), model.module(here)(x), rtol=0, atol=0)
    assert not torch.equal(started.module(there)(x), started.module()(x))
    assert len({repr(one) for one in (model, started, model.starting_from(there))}) == 3, "stores tell starts apart"
    assert repr(started) == repr(model.starting_from(weights[0])) == repr(copy.deepcopy(started))
    for wrong, message in ((here[1:], "have shape .*, got"), (np.nan * here, "be finite")):
        with pytest.raises(ValueError, match=f"theta_0 must {message}"):
            model.starting_from(wrong)
