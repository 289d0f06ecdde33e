from dataclasses import asdict, replace

import pytest
from distributed.protocol.pickle import dumps, loads  # as plans are sent to workers

from dpsub import DPSGD, accounting
from dpsub.accounting import Epochs, Poisson, Sampling, TruncatedPoisson, WithoutReplacement

KNOWN = (Poisson, WithoutReplacement, Epochs)


@pytest.fixture
def own(monkeypatch):
    """A sampling with a parameter that a user may write."""
    monkeypatch.setattr(Sampling, "BY_NAME", dict(Sampling.BY_NAME))

    class Own(Sampling):
        name = "own"
        words = "batches of one's own"

        def __init__(self, largest):
            self.largest = int(largest)

        def pairs(self, adjacency, sigma, q):
            return Poisson().pairs(adjacency, 2 * sigma, q)

        def worst_case(self, adjacency, sigma, q, steps):
            raise NotImplementedError

    return Own


@pytest.mark.parametrize("kind", KNOWN)
def test_a_name_stands_for_its_sampling(kind):
    sampling = Sampling.of(kind.name)
    assert type(sampling) is kind
    assert sampling == kind()
    assert Sampling.of(str(sampling)) == Sampling.of(sampling) == loads(dumps(sampling))
    assert len({Sampling.of(other.name) for other in KNOWN} | {sampling}) == len(KNOWN)


@pytest.mark.parametrize("kind", KNOWN)
def test_a_sampling_compared_with_a_text_raises(kind):
    for compare in (lambda: kind() == kind.name, lambda: kind.name != kind(), lambda: kind() in ("poisson", "epochs")):
        with pytest.raises(TypeError, match=r"cannot be compared with a text: give Sampling.of\('"):
            compare()
    assert kind() != None  # noqa: E711


def test_parameters_of_a_sampling_are_part_of_its_text(own):
    assert str(own(9)) == "own:9"
    assert repr(own(9)) == "Own(9)"
    assert Sampling.of("own:9") == own(9) != own(8)
    same = own(9)
    same.largest = 9.0
    assert (same, hash(same)) == (own(9), hash(own(9)))
    with pytest.raises(ValueError, match="sampling must be given as 'own:largest', got 'own'"):
        Sampling.of("own")


def test_another_sampling_is_asked_by_every_accountant(own):
    asked = {"sample_rate": 0.1, "steps": 20, "adjacency": "substitute"}
    poisson = {"noise_multiplier": 2.0, **asked}
    other = {"noise_multiplier": 1.0, **asked, "sampling": "own:9"}
    assert accounting.epsilon(**other, delta=1e-5) == accounting.epsilon(**poisson, delta=1e-5)
    assert accounting.tradeoff(0.1, **other) == accounting.tradeoff(0.1, **poisson)
    assert accounting.risk(**other) == accounting.risk(**poisson)


@pytest.mark.parametrize("sampling", ["epochs", "without_replacement", Epochs(), TruncatedPoisson(9, 50)])
def test_a_training_keeps_its_sampling(sampling):
    spec = DPSGD(1.0, 1.0, 0.25, 8, 0.1, sampling=sampling)
    assert spec.sampling == Sampling.of(sampling)
    assert spec == loads(dumps(spec)) == replace(spec)
    assert asdict(spec)["sampling"] == spec.sampling
    assert spec.attributes["sampling"] == str(spec.sampling)
    assert DPSGD(**spec.attributes) == spec
