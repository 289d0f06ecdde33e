import numpy as np
import pytest
import torch

from dpsub import data, models


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
        (lambda: models.mlp(flat(64), ()), "hidden must be the hidden layers' widths, one or more, got none"),
        (lambda: models.mlp(flat(64), (0,)), "hidden must be >= 1 and <= 2147483648, got 0"),
        (lambda: models.mlp(flat(64), 128), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(flat(64), bytearray(b"a")), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(flat(64), {20, 10}), "hidden must be the hidden layers' widths"),
        (lambda: models.mlp(flat(64), activation="gelu"), "activation must be one of 'tanh', 'relu'"),
        (lambda: models.convnet(flat(64)), "task must have square images"),
        (lambda: models.convnet(images(3, 8), size="small"), "task must have larger images for this network"),
        (lambda: models.convnet(images(1, 16), size="tiny"), "size must be one of 'auto', 'small', 'large'"),
        (lambda: models.linear(images(1, 16)), "task must have flat features"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
