"""What studies/tight_auditing/wide_resnet.py says of its network and of augmentation multiplicity."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from torch.nn import functional

from dpsub import DPSGD, data
from dpsub.trainers import assemble
from studies.tight_auditing import wide_resnet as wide

COPIES, SIZE = 3, 8
COINS = 2 * wide.BITS + 1


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.random((6, 3, SIZE, SIZE)), rng.integers(0, 4, 6), num_classes=4)


@pytest.fixture(scope="module")
def bank(task):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return wide.wide_resnet(task, depth=10, width=1, copies=COPIES, pad=2)


class Given(nn.Module):
    """Takes the place of the dropout layer, with coins that are given: 0, or 2 as dropout scales them."""

    def __init__(self, coins):
        super().__init__()
        self.coins = coins

    def forward(self, ones):
        assert ones.shape == self.coins.shape
        return ones * self.coins


def augmented_by_hand(image, coins, pad):
    """One copy of an image (channels, size, size) by slicing a padded one, from coins (COINS,) of 0 and 1."""
    down, right = (
        int("".join(str(int(coin)) for coin in reversed(part)), 2) * (2 * pad + 1) // 2**wide.BITS
        for part in (coins[: wide.BITS], coins[wide.BITS : -1])
    )
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="symmetric")
    shown = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
    return shown[:, :, ::-1].copy() if coins[-1] else shown


def test_wrn_16_4_has_as_many_parameters_as_published():
    network = wide.WideResNet()
    total = sum(value.numel() for value in network.parameters())
    assert total == 2_753_818
    widths = [(16, 64), (64, 128), (128, 256)]
    convolutions = 3 * 16 * 9 + sum(9 * (i * o + 3 * o * o) + i * o for i, o in widths)
    norms = 2 * (256 + sum(i + 3 * o for i, o in widths))
    of_batch_norm = convolutions + norms + 256 * 10 + 10
    assert of_batch_norm == 2_748_890  # of WRN-16-4 as Zagoruyko and Komodakis train it
    gains_and_biases = 2 * (16 + sum(5 * o for _, o in widths))
    norms_of_skips = 2 * sum(i for i, _ in widths)
    assert total == of_batch_norm + gains_and_biases + norms_of_skips
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
        assert len(wide.WideResNet(depth=22, width=1).blocks) == 9
        assert network.blocks(network.first(torch.zeros(1, 3, 32, 32))).shape == (1, 256, 8, 8)


def test_filters_are_centred_and_as_long_as_their_gain():
    layer = wide.StandardizedConv(3, 5, 3, stride=2)
    with torch.no_grad():
        layer.gain.copy_(torch.arange(1.0, 6.0))
        layer.bias.copy_(torch.arange(5.0))
        layer.weight.add_(0.3)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weight = layer.weight.detach().numpy()
    by_hand = np.stack([(one - one.mean()) / np.linalg.norm(one - one.mean()) for one in weight])
    by_hand *= np.arange(1.0, 6.0)[:, None, None, None]
    expected = functional.conv2d(images, torch.tensor(by_hand, dtype=torch.float32), layer.bias, stride=2, padding=1)
    torch.testing.assert_close(layer(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pad", [0, 2, 4])
def test_copies_are_shifted_mirrored_and_flipped(pad):
    rng = np.random.default_rng(pad)
    images = rng.random((4, 3, 8, 10)).astype(np.float32)
    coins = rng.integers(0, 2, (4, 5, COINS))
    module = wide.Augmented(nn.Identity(), 5, pad)
    module.coins = Given(2.0 * torch.tensor(coins))
    found = module.augmented(torch.tensor(images))
    assert found.shape == (4, 5, 3, 8, 10)
    for image, of_image, copies in zip(images, coins, found, strict=True):
        for drawn, copy in zip(of_image, copies, strict=True):
            np.testing.assert_array_equal(copy, augmented_by_hand(image, drawn, pad))


def test_all_shifts_and_flips_are_equally_likely():
    module = wide.Augmented(nn.Identity(), 9_000, 4).train()
    places = torch.arange(100.0).view(1, 1, 10, 10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        copies = module.augmented(places)[0, :, 0]
    centre = copies[:, 4:6, 4:6]  # shows where a copy was shifted to, whatever was mirrored at the edges
    _, counts = centre.flatten(1).unique(dim=0, return_counts=True)
    assert len(counts) == 9 * 9 * 2
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_a_records_gradient_is_the_mean_of_its_copies_gradients(task, bank):
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    theta = bank.initial_parameters(1, torch.Generator().manual_seed(1))
    module = bank.module(theta[0])
    coins = torch.empty(1, 6, COPIES, COINS).bernoulli_(0.5, generator=torch.Generator().manual_seed(2))[0]
    gradients = []
    for image, label, of_image in zip(task.x_train, y, coins, strict=True):
        copies = np.stack([augmented_by_hand(image, drawn.int().numpy(), 2) for drawn in of_image])
        losses = functional.cross_entropy(module.network(torch.tensor(copies)), label.repeat(COPIES), reduction="none")
        of_copies = [
            torch.cat([part.flatten() for part in torch.autograd.grad(loss, module.parameters(), retain_graph=True)])
            for loss in losses
        ]
        assert (of_copies[0] - of_copies[1]).norm() > 0.01
        gradients.append(torch.stack(of_copies).mean(dim=0))
    for bound in (torch.inf, 0.5):
        training = bank.training(torch.Generator().manual_seed(2))
        found = training.clipped_sum(theta, x, y, None, bound)[0]
        clipped = sum(one * min(1.0, bound / (float(one.norm()) + 1e-6)) for one in gradients)
        torch.testing.assert_close(found, clipped, rtol=1e-3, atol=1e-5)


def test_what_is_evaluated_sees_the_image_as_it_is(task, bank):
    theta = bank.initial_parameters(2, torch.Generator().manual_seed(1))
    x = torch.tensor(task.x_train)
    for run in range(2):
        network = bank.module(theta[run]).network
        expected = functional.softmax(network(x), dim=1)
        found = functional.softmax(bank.logits(theta, x)[:, :, run], dim=1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_copies_come_from_the_banks_own_stream(task, bank):
    def trained(seed):
        generator = torch.Generator().manual_seed(seed)
        made = assemble(bank, task, DPSGD(1.0, 1.0, 1.0, 1, 0.1), bits=np.zeros(1, dtype=np.int8), generator=generator)
        made.theta = theta.clone()
        made.step()
        return made.noisy_average

    theta = bank.initial_parameters(1, torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    assert torch.equal(trained(3), trained(3))
    assert not torch.equal(trained(3), trained(4))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_number_of_copies_is_part_of_the_name_by_which_stores_know_it(task, bank):
    network = bank.template.network
    others = [
        wide.models.from_module(wide.Augmented(network, *one), task, loss=wide.mean_loss) for one in ((2, 2), (3, 1))
    ]
    same = wide.models.from_module(wide.Augmented(network, 3, 2), task, loss=wide.mean_loss)
    assert len({repr(one) for one in (same, *others)}) == 3
