import numpy as np
import pytest

from dpsub import data


def test_digits_are_put_back_where_their_pixels_were():
    task = data.digits(n_train=60)
    shown = task.pictures(task.x_test)
    assert shown.shape == (len(task.y_test), 8, 8)
    np.testing.assert_array_equal(shown[:, task.pixels], task.x_test)
    assert (shown[:, ~task.pixels] == 0).all()
    assert (~task.pixels).any()


def test_images_are_pictures_with_their_colours_last():
    rng = np.random.default_rng(0)
    colour = data.from_arrays(rng.random((2, 3, 5, 4)), [0, 1])
    np.testing.assert_array_equal(colour.pictures(colour.x_train), np.moveaxis(colour.x_train, 1, -1))
    grey = data.from_arrays(rng.random((2, 1, 5, 4)), [0, 1])
    np.testing.assert_array_equal(grey.pictures(grey.x_train), grey.x_train[:, 0])


def test_other_records_are_no_pictures():
    flat, digits = data.from_arrays(np.zeros((2, 3)), [0, 1]), data.digits(n_train=60)
    for x, of in ((flat.x_train, flat), (np.zeros((2, 3)), digits)):
        with pytest.raises(ValueError, match=r"x must be records of a task of .*, got .*\(2, 3\)"):
            of.pictures(x)


def test_what_is_no_array_of_numbers_is_no_picture():
    digits = data.digits(n_train=60)
    for x in ("a", None, ..., np.full((1, digits.x_train.shape[1]), 1e300), 1 + 0j):
        with pytest.raises(ValueError, match="x must be "):
            digits.pictures(x)
