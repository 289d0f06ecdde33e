import numpy as np
import pytest
import torch

from dpsub.opacus.canary_gradients import Canaries, Piece, own_gradients

PARAMETERS = [torch.zeros(4, 5), torch.zeros(4), torch.zeros(3, 4)]
BOUNDS = [0.8, 0.36, 0.48]  # of norm 1


def drawn(kind, bounds=None, *, norm=10.0, seed=0, anew=False, energies=None):
    canaries = Canaries(kind, norm=norm, bounds=bounds, seed=seed, anew=anew)
    if canaries.needs_energies:
        canaries.learn(energies or [torch.ones_like(one) for one in PARAMETERS])
    return canaries


def whole(pieces, norm, clipped=False):
    """The canary as one vector."""
    gradients = [torch.zeros_like(one) for one in PARAMETERS]
    for place, piece in pieces.items():
        piece.add_to(gradients[place], norm * (piece.clipped if clipped else piece.share))
    return torch.cat([one.flatten() for one in gradients]).double().numpy()


@pytest.mark.parametrize("kind", ["dirac", "diracs", "constant", "random"])
@pytest.mark.parametrize("norm", [0.3, 10.0])
def test_canaries_have_their_norm_and_are_clipped_to_the_bound(kind, norm):
    pieces = drawn(kind, norm=norm).draw(PARAMETERS)[0]
    raw, clipped = whole(pieces, norm), whole(pieces, 1, clipped=True)
    assert np.linalg.norm(raw) == pytest.approx(norm)
    np.testing.assert_allclose(clipped, raw * min(1, 1 / norm), rtol=1e-5)


@pytest.mark.parametrize("kind", ["dirac", "diracs", "constant", "random"])
@pytest.mark.parametrize("norm", [0.3, 10.0])
def test_clipping_by_layer_is_clipping_by_layer(kind, norm):
    pieces = drawn(kind, BOUNDS, norm=norm).draw(PARAMETERS)[0]
    raw, clipped = whole(pieces, norm), whole(pieces, 1, clipped=True)
    ends = np.cumsum([0, *(one.numel() for one in PARAMETERS)])
    for start, end, bound in zip(ends, ends[1:], BOUNDS, strict=False):
        own = np.linalg.norm(raw[start:end])
        np.testing.assert_allclose(clipped[start:end], raw[start:end] * min(1, bound / own), rtol=1e-5)
    if kind in ("dirac", "diracs") and norm > 1:
        assert np.linalg.norm(clipped) == pytest.approx(1)


def test_diracs_are_of_one_coordinate_each():
    assert np.count_nonzero(whole(drawn("dirac").draw(PARAMETERS)[0], 1)) == 1
    assert np.count_nonzero(whole(drawn("diracs").draw(PARAMETERS)[0], 1)) == 3
    assert np.count_nonzero(whole(drawn("dirac", BOUNDS).draw(PARAMETERS)[0], 1)) == 3
    assert len(np.unique(whole(drawn("constant").draw(PARAMETERS)[0], 1).round(6))) == 1


def test_diracs_are_where_the_first_batch_moves_least():
    energies = [torch.ones(4, 5), torch.ones(4), torch.ones(3, 4)]
    energies[2][1, 2] = 0.1
    assert whole(drawn("dirac", energies=energies).draw(PARAMETERS)[0], 1)[20 + 4 + 6] == 1
    [*_, last] = drawn("diracs", energies=energies).draw(PARAMETERS)[0].values()
    assert last.coordinate == 6


@pytest.mark.parametrize("kind", ["dirac", "random"])
def test_canaries_are_drawn_anew_if_asked_and_again_from_a_seed(kind):
    large = [torch.zeros(100, 100)]
    energies = [torch.ones(100, 100)]

    def three(anew, seed):
        canaries = drawn(kind, anew=anew, seed=seed, energies=energies)
        return [hash(str(canaries.draw(large)[0][0])) for _ in range(3)]

    assert len(set(three(False, 0))) == 1
    assert len(set(three(True, 0))) == 3
    assert three(True, 0) == three(True, 0)
    assert three(True, 0)[0] != three(True, 1)[0]


def test_gradients_of_ones_own_give_the_direction():
    given = [torch.arange(20.0).view(4, 5), torch.zeros(4), -torch.ones(3, 4)]
    pieces = drawn(own_gradients(given, PARAMETERS)).draw(PARAMETERS)[0]
    vector = torch.cat([one.flatten() for one in given]).double().numpy()
    np.testing.assert_allclose(whole(pieces, 1), vector / np.linalg.norm(vector), atol=1e-6)
    assert set(pieces) == {0, 2}
    as_arrays = own_gradients([one.numpy() for one in given], PARAMETERS)
    assert all(a.equal(b) for a, b in zip(as_arrays, given, strict=True))
    by_parameter = dict(zip(PARAMETERS, given, strict=True))
    assert all(a.equal(b) for a, b in zip(own_gradients(by_parameter, PARAMETERS), given, strict=True))


ONES = [torch.ones_like(one) for one in PARAMETERS]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("heavy", "canary must be one of 'dirac', 'diracs', 'constant', 'random', or a tensor for each of 3"),
        ([ONES[0], ONES[1], torch.ones(4, 3)], r"canary\[2\] must have the shape of its parameter, \(3, 4\), got"),
        ([0 * one for one in ONES], "and not 0 everywhere, got one of norm 0.0"),
        ({"weight": ONES[0]}, "its keys must be the parameters"),
    ],
)
def test_gradients_that_do_not_fit_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        own_gradients(given, PARAMETERS)


def test_pieces_enter_gradients_of_any_memory_format():
    gradient = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    piece = Piece(1.0, 1.0, 37, None)
    piece.add_to(gradient, 2.0)
    assert piece.product(gradient) == gradient.flatten()[37] == gradient.sum() == 2
