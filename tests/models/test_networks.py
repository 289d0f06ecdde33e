from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsub import data, models
from dpsub.models import networks


@pytest.mark.parametrize("name", ["mlp", "mlp on images", "convnet", "convnet of many channels", "large relu convnet"])
def test_the_result_does_not_depend_on_the_room(bench_of, sampled, name):
    bench = bench_of(name)
    for mask, gather in ((None, False), (sampled, False), (sampled, True)):
        small, middle, large = (
            bench.sum(mask, model=replace(bench.model, gather=gather, room=room)) for room in (1, 2**14, 2**24)
        )
        torch.testing.assert_close(small, large, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(middle, large, atol=1e-6, rtol=1e-5)
    few, many = (replace(bench.model, room=room).logits(bench.theta, bench.inputs) for room in (1, 2**24))
    torch.testing.assert_close(few, many, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_many_records_are_summed_in_parts(bench_of, sampled, name, monkeypatch):
    bench = bench_of(name)
    whole = [bench.sum(sampled, model=cut) for cut in bench.gathering]
    monkeypatch.setattr("dpsub.models.bank_base.RECORDS_AT_ONCE", 1)
    monkeypatch.setattr("dpsub.models.heads.RECORDS_AT_ONCE", 1)
    parts = [bench.sum(sampled, model=cut) for cut in bench.gathering]
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
    for one, other in zip(parts, whole, strict=True):
        assert not torch.equal(one, other), "parts round otherwise: was it summed in parts?"


def test_small_batches_are_computed_alone_and_large_ones_among_all_records(bench_of):
    model = bench_of("mlp").model
    for rate, gather in ((0.1, True), (0.49, True), (0.5, False), (1.0, False)):
        prepared = model.prepared(torch.device("cpu"), rate)
        assert (prepared.gather, prepared.room) == (gather, networks.ROOM["cpu"])
        assert repr(prepared) == repr(model), "stores take models of one repr for the same"


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_random_starts_are_pytorchs_and_each_models_own(bench_of, name):
    model = bench_of(name).model
    theta = model.initial_parameters(400, torch.Generator().manual_seed(0))
    assert len(torch.unique(theta[:, 0])) == 400
    start = 0
    for theirs in model.module().parameters():
        ours = theta[:, start : start + theirs.numel()]
        start += theirs.numel()
        if theirs.ndim > 1:
            bound = 1 / theirs[0].numel() ** 0.5
        assert float(ours.abs().max()) <= bound
        assert float(theirs.detach().abs().max()) <= bound
        assert float(ours.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
        assert abs(float(ours.mean())) < 4.5 * bound / (3 * ours.numel()) ** 0.5
    assert start == model.parameters


def images(channels, pixels):
    x = np.random.default_rng(0).random((4, channels, pixels, pixels))
    return data.from_arrays(x, [0, 1, 2, 9])


def flat(features, classes=10):
    x = np.random.default_rng(0).random((4, features))
    return data.from_arrays(x, [0, 1, 2, classes - 1])


def test_parameter_counts_are_the_papers():
    assert models.mlp(flat(600, 100)).parameters == 89_828  # Table A1
    assert models.linear(flat(768)).parameters == 7_690
    assert models.convnet(images(1, 28)).parameters == 25_386
    assert models.convnet(images(3, 32)).parameters == 550_570


@pytest.mark.parametrize(("pixels", "size", "seen"), [(28, "small", 26), (16, "small", 14), (34, "large", 34)])
def test_pixels_that_only_dropped_outputs_see_are_left_out(pixels, size, seen):
    bank = models.convnet(images(2, pixels), size=size)
    assert bank.layers[0].size == seen
    theta = bank.initial_parameters(3, torch.Generator().manual_seed(0))
    x = torch.rand(5, 2, pixels, pixels)
    with torch.no_grad():
        expected = torch.stack([bank.module(each)(x) for each in theta], dim=2)
        torch.testing.assert_close(bank.logits(theta, x), expected)
        x[:, :, seen:] = x[..., seen:] = 7
        torch.testing.assert_close(bank.logits(theta, x), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mlp(flat(64), (0,)), "hidden must be >= 1, got 0"),
        (lambda: models.mlp(flat(64), 128), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(flat(64), {20, 10}), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(flat(64), activation="gelu"), "activation must be one of 'tanh', 'relu'"),
        (lambda: models.convnet(flat(64)), "task must have square images"),
        (lambda: models.convnet(images(3, 8), size="small"), "task must have larger images for this network"),
        (lambda: models.convnet(images(1, 16), size="tiny"), "size must be one of 'auto', 'small', 'large'"),
        (lambda: models.linear(images(1, 16)), "task must have flat features"),
    ],
)
def test_architectures_that_cannot_be_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
