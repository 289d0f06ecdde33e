import numpy as np
import pytest
import torch

from dpsub import DPSGD, audit, models

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
    found = models.outputs_of(model, weights, x)
    assert found.shape == (4, 6, model.classes)
    for answers, own in zip(found, weights, strict=True):
        torch.testing.assert_close(answers, model.module(own)(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.flat(models.theta_of(model, weights)), weights, rtol=0, atol=0)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] not in OF_TOKENS], ids=" ".join)
def test_gradients_by_records_are_those_of_each_module(trained, case):
    model, weights, x = trained(*case)
    chosen = torch.randn(4, 6, model.classes, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    (found,) = torch.autograd.grad((chosen * models.outputs_of(model, weights, x)).sum(), x)
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
    outputs = models.outputs_of(model, torch.tensor(result.weights.values), x)
    logs = torch.log_softmax(outputs, dim=2)

    def logit(record, label):
        log = logs[:, record, label]
        return log - torch.log1p(-log.exp())

    np.testing.assert_allclose(
        logit(0, pair.z.y) - logit(1, pair.z_prime.y), result.score.values[:, -1], rtol=1e-3, atol=1e-4
    )


def test_weights_are_copied_and_keep_their_precision(trained):
    model, weights, _ = trained("cast", "deep relu mlp")
    theta = models.theta_of(model, weights.double())
    assert theta.dtype == torch.float64
    model.flat(theta).zero_()
    assert weights.abs().max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, x: (w[0], x), r"weights must have shape \(runs, \d+\), got \(\d+,\)"),
        (lambda w, x: (w[:, 1:], x), r"weights must have shape \(runs, \d+\), got \(4, \d+\)"),
        (lambda w, x: (w.numpy(), x), r"weights must be a torch.Tensor .* got a ndarray: use torch.tensor\(weights\)"),
        (lambda w, x: (w.long(), x), "weights must be a torch.Tensor of real numbers, got torch.int64"),
        (lambda w, x: (w / 0, x), r"weights must be finite, got \d+ numbers that are not"),
        (lambda w, x: (w, x.numpy()), "x must be a torch.Tensor of real numbers, got a ndarray"),
        (lambda w, x: (w, x[0]), r"x must have shape \(records, \d+\), got \(\d+,\)"),
        (lambda w, x: (w, x[:, 1:]), r"x must have shape \(records, \d+\), got \(6, \d+\)"),
        (
            lambda w, x: (w, x.double()),
            "x must have the dtype and device of weights, torch.float32 on cpu, got",
        ),
    ],
)
def test_what_does_not_fit_is_named(trained, change, message):
    model, weights, x = trained("cast", "deep relu mlp")
    with pytest.raises(ValueError, match=message):
        models.outputs_of(model, *change(weights, x))


def test_what_is_no_bank_is_named(trained):
    model, weights, x = trained("cast", "deep relu mlp")
    with pytest.raises(ValueError, match="model must be a bank, got a torch.nn.Module, Sequential"):
        models.outputs_of(model.module(weights[0]), weights, x)
