import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from dpsub import DPSGD, data, models
from dpsub.trainers import assemble

RUNS = 3


def images(channels, pixels, n=24, seed=0):
    rng = np.random.default_rng(seed)
    return data.from_arrays(rng.random((n, channels, pixels, pixels)), rng.integers(0, 10, n), num_classes=10)


TASKS = {"digits": data.digits(n_train=24), "grey": images(1, 16), "colour": images(3, 8)}
MODELS = {
    "linear": (TASKS["digits"], models.linear(TASKS["digits"])),
    "mlp": (TASKS["digits"], models.mlp(TASKS["digits"])),
    "deep relu mlp": (TASKS["digits"], models.mlp(TASKS["digits"], (20, 15, 12), activation="relu")),
    "mlp on images": (TASKS["colour"], models.mlp(TASKS["colour"], (11,))),
    "convnet": (TASKS["grey"], models.convnet(TASKS["grey"])),
    "convnet of many channels": (images(16, 16), models.convnet(images(16, 16))),
    "large convnet": (TASKS["colour"], models.convnet(TASKS["colour"], size="large", activation="relu")),
}
every_model = pytest.mark.parametrize(("task", "model"), MODELS.values(), ids=MODELS)


def some_parameters(model, scale=0.3):
    """Parameters of RUNS models that are not where training starts."""
    generator = torch.Generator().manual_seed(5)
    theta = model.initial_parameters(RUNS, generator)
    return theta + scale / 10 * torch.randn(theta.shape, generator=generator)


def by_autograd(model, parameters, task, i):
    """The gradient of one record of one model, in the bank's flat order, by a path that shares no code with it."""
    module = model.module(parameters)
    loss = nn.functional.cross_entropy(
        module(torch.as_tensor(task.x_train[i : i + 1])), torch.as_tensor(task.y_train[i : i + 1])
    )
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    if isinstance(model, models.Linear):
        return torch.cat([gradients[0].T.flatten(), gradients[1]])
    return torch.cat([gradient.flatten() for gradient in gradients])


@every_model
@pytest.mark.parametrize("max_grad_norm", [0.05, 1.0, 1e3], ids=["all clipped", "some", "none"])
def test_clipped_sum_is_the_sum_of_clipped_per_record_gradients(task, model, max_grad_norm):
    theta = some_parameters(model)
    sampled = torch.rand(24, RUNS, generator=torch.Generator().manual_seed(0)) < 0.5
    x, y = model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    expected = torch.zeros(RUNS, model.parameters)
    for run in range(RUNS):
        for i in torch.where(sampled[:, run])[0]:
            gradient = by_autograd(model, model.flat(theta)[run], task, i)
            expected[run] += gradient * min(1, max_grad_norm / (float(gradient.norm()) + 1e-6))
    for gather in (False, True):
        total = model.flat(model.clipped_sum(theta, x, y, sampled, max_grad_norm, gather=gather))
        assert float((total - expected).norm() / expected.norm()) < 2e-6


@every_model
def test_the_full_batch_is_the_batch_with_everyone(task, model):
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    everyone = torch.ones(24, RUNS, dtype=torch.bool)
    full = model.clipped_sum(theta, x, y, None, 1.0)
    torch.testing.assert_close(full, model.clipped_sum(theta, x, y, everyone, 1.0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(full, model.clipped_sum(theta, x, y, everyone, 1.0, gather=True), atol=1e-5, rtol=1e-5)


@every_model
def test_an_empty_batch_sums_to_nothing(task, model):
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    nobody = torch.zeros(24, RUNS, dtype=torch.bool)
    for gather in (False, True):
        assert not model.clipped_sum(theta, x, y, nobody, 1.0, gather=gather).any()


@every_model
def test_a_sum_replaces_whatever_was_in_its_place(task, model):
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    sampled = torch.rand(24, RUNS, generator=torch.Generator().manual_seed(0)) < 0.4
    for mask, gather in ((None, False), (sampled, False), (sampled, True), (torch.zeros_like(sampled), True)):
        place = torch.full_like(theta, torch.nan)
        total = model.clipped_sum(theta, x, y, mask, 1.0, gather=gather, out=place)
        assert total.data_ptr() == place.data_ptr()
        torch.testing.assert_close(place, model.clipped_sum(theta, x, y, mask, 1.0, gather=gather), atol=0, rtol=0)


@every_model
def test_batches_of_different_sizes_are_summed_each_by_itself(task, model):
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    sampled = torch.zeros(24, RUNS, dtype=torch.bool)
    sampled[5, 0] = sampled[3:20, 2] = True  # one record, none, seventeen
    for room in (1, 2**24):
        gathered = model.clipped_sum(theta, x, y, sampled, 1.0, gather=True, room=room)
        torch.testing.assert_close(gathered, model.clipped_sum(theta, x, y, sampled, 1.0), atol=1e-6, rtol=1e-5)
    assert not model.flat(gathered)[1].any()


@every_model
def test_the_result_does_not_depend_on_the_room(task, model):
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    sampled = torch.rand(24, RUNS, generator=torch.Generator().manual_seed(0)) < 0.4
    for mask, gather in ((None, False), (sampled, False), (sampled, True)):
        small, middle, large = (
            model.clipped_sum(theta, x, y, mask, 1.0, gather=gather, room=room) for room in (1, 2**14, 2**24)
        )
        torch.testing.assert_close(small, large, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(middle, large, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model.logits(theta, x, 1), model.logits(theta, x, 2**24), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_many_records_are_summed_in_parts(name, monkeypatch):
    task, model = MODELS[name]
    theta, x, y = some_parameters(model), model.inputs(torch.as_tensor(task.x_train)), torch.as_tensor(task.y_train)
    sampled = torch.rand(24, RUNS, generator=torch.Generator().manual_seed(0)) < 0.4
    whole = [model.clipped_sum(theta, x, y, sampled, 1.0, gather=gather) for gather in (False, True)]
    monkeypatch.setattr("dpsub._networks.RECORDS_AT_ONCE", 1)
    monkeypatch.setattr("dpsub.models.RECORDS_AT_ONCE", 1)
    parts = [model.clipped_sum(theta, x, y, sampled, 1.0, gather=gather) for gather in (False, True)]
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@every_model
def test_one_model_of_the_bank_is_a_torch_module(task, model):
    theta, x = some_parameters(model), torch.as_tensor(task.x_train)
    logits = model.logits(theta, model.inputs(x))
    for run in range(RUNS):
        parameters = model.flat(theta)[run].clone()
        module = model.module(parameters)
        torch.testing.assert_close(module(x), logits[..., run], atol=1e-5, rtol=1e-5)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        assert parameters.any(), "the module must not share the parameters it was given"


def test_parameter_counts_are_the_papers():
    rng = np.random.default_rng(0)
    purchase = data.from_arrays(rng.integers(0, 2, (4, 600)), [0, 1, 2, 99])
    assert models.mlp(purchase).parameters == 89_828  # Table A1
    assert models.linear(data.from_arrays(rng.random((4, 768)), [0, 1, 2, 9])).parameters == 7_690
    assert models.convnet(images(1, 28)).parameters == 25_386
    assert models.convnet(images(3, 32)).parameters == 550_570


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_random_starts_are_pytorchs_and_each_models_own(name):
    _, model = MODELS[name]
    theta = model.initial_parameters(400, torch.Generator().manual_seed(0))
    assert len(torch.unique(theta[:, 0])) == 400
    start = 0
    for theirs in model.module().parameters():
        ours = theta[:, start : start + theirs.numel()]
        start += theirs.numel()
        if theirs.ndim > 1:
            bound = 1 / theirs[0].numel() ** 0.5
        assert float(ours.abs().max()) <= bound
        assert abs(float(theirs.detach().abs().max())) <= bound
        assert float(ours.std()) == pytest.approx(bound / 3**0.5, rel=0.02)


def test_a_bank_may_start_where_it_is_told():
    _, model = MODELS["mlp"]
    start = np.linspace(-1, 1, model.parameters)
    told = model.starting_from(start)
    theta = told.initial_parameters(2, torch.Generator())
    np.testing.assert_allclose(theta, np.tile(start, (2, 1)), atol=1e-7)
    assert repr(told) != repr(model.starting_from(-start)), "what is stored must tell starts apart"
    for wrong in (start[:-1], np.full(model.parameters, np.nan)):
        with pytest.raises(ValueError, match="theta_0 must (have shape|be finite)"):
            model.starting_from(wrong)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_parameters_may_come_as_anything_flat(name):
    _, model = MODELS[name]
    vector = torch.linspace(-1, 1, model.parameters, requires_grad=True)
    for given in (vector, vector.detach().numpy(), xr.DataArray(vector.detach().numpy()), vector.tolist()):
        flat = nn.utils.parameters_to_vector(model.module(given).parameters()).detach()
        np.testing.assert_allclose(np.sort(flat), vector.detach(), atol=1e-6)
    for wrong in (model.module(), model.module().state_dict(), list(model.module().parameters()), "abc"):
        with pytest.raises(ValueError, match=f"parameters must be a vector of {model.parameters} numbers, as torch"):
            model.module(wrong)
    with pytest.raises(ValueError, match=r"parameters must have shape \(.*,\), got"):
        model.module(vector[:-1])


@pytest.mark.parametrize("rows", [0, 2])
def test_a_head_within_the_span_of_its_records_trains_the_same(rows):
    """Injected noise, seen in the smaller coordinates, leads to the same logits and products."""
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((20, 50)), rng.integers(0, 4, 20), num_classes=4)
    model, spec = models.linear(task), DPSGD(0.5, 1.0, 1.0, 6, 0.3)
    vectors = torch.zeros(2, *model.shape)
    vectors[0, :rows, 1], vectors[1, :rows, 2] = 0.7, -0.4
    bank = assemble(model, task, spec, bits=np.zeros(3, np.int8), generator=torch.Generator())
    small, inputs, moved = model.within_span(bank.inputs, vectors.flatten(1))
    assert inputs.shape == (20, 20 + rows)
    assert small.parameters == (20 + rows) * 4
    torch.testing.assert_close(inputs.norm(dim=1), bank.inputs.norm(dim=1))

    basis = torch.linalg.lstsq(inputs.double(), bank.inputs.double()).solution  # (20 + rows, 51), where rows = 0
    if rows:
        basis = torch.zeros(20 + rows, 51, dtype=torch.float64)
        basis[:rows, :rows] = torch.eye(rows)
        rest = bank.inputs.double().clone()
        rest[:, :rows] = 0
        basis[rows:] = torch.linalg.solve(inputs[:, rows:].double(), rest)
    torch.testing.assert_close(basis @ basis.T, torch.eye(20 + rows, dtype=torch.float64), atol=1e-4, rtol=0)

    theta, noise = torch.zeros(*small.shape, 3), torch.randn(6, *model.shape, 3)
    for step in range(6):
        bank.step(noise=noise[step])
        total = small.clipped_sum(theta, inputs, bank.labels, None, 1.0)
        total += 0.5 * torch.einsum("sd,dkr->skr", basis.float(), noise[step])
        theta -= 0.3 * total / 20
    torch.testing.assert_close(small.logits(theta, inputs), model.logits(bank.theta, bank.inputs), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved @ theta.flatten(0, 1), vectors.flatten(1) @ bank.theta.flatten(0, 1))


def test_a_span_that_saves_nothing_is_not_taken():
    task, model = MODELS["linear"]
    x = model.inputs(torch.as_tensor(task.x_train))
    assert model.within_span(x, torch.ones(1, model.parameters)) is None
    assert model.within_span(torch.cat([x] * 4), torch.zeros(1, model.parameters)) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mlp(TASKS["digits"], ()), r"hidden must be the hidden layers' widths, one or more, got \(\)"),
        (lambda: models.mlp(TASKS["digits"], (0,)), "hidden must be >= 1, got 0"),
        (lambda: models.mlp(TASKS["digits"], 128), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(TASKS["digits"], activation="gelu"), "activation must be one of 'tanh', 'relu'"),
        (lambda: models.convnet(TASKS["digits"]), "task must have square images"),
        (lambda: models.convnet(TASKS["colour"], size="small"), "task must have larger images for this network"),
        (lambda: models.convnet(TASKS["grey"], size="tiny"), "size must be one of 'auto', 'small', 'large'"),
        (lambda: models.linear(TASKS["grey"]), "task must have flat features"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_model
def test_a_task_of_another_shape_is_refused(task, model):
    with pytest.raises(ValueError, match="model must fit the task"):
        models.check_fits(model, data.from_arrays(np.ones((4, 7)), [0, 1, 2, 9]))
