from itertools import combinations

import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy.stats import kstest
from torch import nn

from dpsub import DPSGD, CanaryPair, data, models
from dpsub.trainers import Bank, assemble, block_size
from dpsub.trainers.coins import coins, threshold

STEPS = 8
CANARIES = ("gradient", "record")
# Opacus divides by the norm plus 1e-6, which takes as much off a canary of norm C; ours enters as it is.
FROM_OPACUS = {"gradient": 1e-6, "record": 1e-9}


def images(channels, pixels):
    rng = np.random.default_rng(1)
    return data.from_arrays(rng.random((40, channels, pixels, pixels)), rng.integers(0, 10, 40), num_classes=10)


DIGITS = data.digits(n_train=40)
MODELS = {
    "linear": (DIGITS, models.linear(DIGITS)),
    "mlp": (DIGITS, models.mlp(DIGITS)),
    "convnet": (images(1, 16), models.convnet(images(1, 16))),
    "large convnet": (images(3, 8), models.convnet(images(3, 8), size="large")),
}
every_model = pytest.mark.parametrize("name", MODELS)
# Full batches, batches out of all records, and batches gathered by themselves.
RATES = (1.0, 0.7, 0.3)
every_model_and_rate = pytest.mark.parametrize(
    ("name", "q"), [(name, q) for name in MODELS for q in RATES if (name, q) != ("large convnet", 0.7)]
)


def spec(**changes):
    return DPSGD(
        **{"noise_multiplier": 0.7, "max_grad_norm": 1.0, "sample_rate": 0.3, "steps": STEPS, "learning_rate": 0.1}
        | changes
    )


def canary(kind, task, model, slot=7, parameter=3):
    if kind == "record":
        x = task.x_train[slot]
        return CanaryPair((x, int(task.y_train[slot])), (x, int(task.y_train[slot] + 1) % 10), slot, "S4")
    z = np.zeros(model.parameters, dtype=np.float32)
    z[parameter] = 1.0
    return CanaryPair(z, -z, slot, "S2")


def new_bank(task, model, setting, bits, pair=None, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return assemble(model, task, setting, bits=np.array(bits, np.int8), generator=generator, canary=pair, **options)


def as_parameters(model, vector):
    """A flat vector as the module's parameters, in its order."""
    if isinstance(model, models.Linear):
        theta = vector.view(model.shape)
        return [theta[:-1].T, theta[-1]]
    shapes = [parameter.shape for parameter in model.module().parameters()]
    return [part.view(shape) for part, shape in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)]


def train_with_opacus(model, task, setting, pair, bit, theta_0, sampled, slot_sampled, noise, dtype, monkeypatch):
    """One model by Opacus's own optimizer: its clipping, noise scale, division and step; parameters after each step."""
    module = model.module()
    for parameter, start in zip(module.parameters(), as_parameters(model, theta_0), strict=True):
        parameter.data = start.clone()
    module = GradSampleModule(module)
    base = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[setting.optimizer]
    optimizer = DPOptimizer(
        base(module.parameters(), lr=setting.learning_rate),
        noise_multiplier=setting.noise_multiplier,
        max_grad_norm=setting.max_grad_norm,
        expected_batch_size=setting.sample_rate * len(task.y_train),
    )
    others = np.delete(np.arange(len(task.y_train)), pair.slot)
    world = pair.z if bit == 0 else pair.z_prime
    path = []
    for step in range(setting.steps):
        draws = iter(as_parameters(model, noise[step]))
        monkeypatch.setattr(opacus_optimizer, "_generate_noise", lambda std, **_: std * next(draws))
        optimizer.zero_grad(set_to_none=True)
        batch = others[sampled[step].numpy()]
        x, y = task.x_train[batch], task.y_train[batch]
        if pair.score == "logit" and slot_sampled[step]:
            x, y = np.concatenate([x, world.x[None]]), np.append(y, world.y)
        nn.functional.cross_entropy(module(torch.as_tensor(x, dtype=dtype)), torch.as_tensor(y)).backward()
        if pair.score == "displacement" and slot_sampled[step]:
            for parameter, gradient in zip(
                module.parameters(), as_parameters(model, torch.as_tensor(world, dtype=dtype)), strict=True
            ):
                parameter.grad_sample = torch.cat([parameter.grad_sample, gradient[None]])
        optimizer.step()
        parameters = [parameter.detach() for parameter in module.parameters()]
        if isinstance(model, models.Linear):
            parameters[0] = parameters[0].T
        path.append(torch.cat([parameter.flatten() for parameter in parameters]))
    return path


@pytest.fixture
def double():
    """Float64 throughout: rounding then decides nothing.

    In float32 it may decide which of two values under a pooling window is the larger, or the sign of an average so near
    0 that Adam's first step, ± the learning rate, turns on it.
    """
    torch.set_default_dtype(torch.float64)
    yield torch.float64
    torch.set_default_dtype(torch.float32)


def furthest_from_opacus(task, model, kind, setting, dtype, monkeypatch):
    """Over all steps and models, how far ours is from Opacus's parameters, relative to how far these have moved."""
    pair, bits = canary(kind, task, model), [0, 1, 1]
    bank = new_bank(task, model, setting, bits, pair)
    bank.inputs, bank.gradients = bank.inputs.to(dtype), bank.gradients.to(dtype)
    sampled = torch.rand(setting.steps, 39, 3, generator=bank.generator) < setting.sample_rate
    slot_sampled = torch.rand(setting.steps, 3, generator=bank.generator) < setting.sample_rate
    if setting.sample_rate < 1:
        sampled[1], slot_sampled[1] = False, False
    noise = torch.randn(setting.steps, 3, model.parameters, generator=bank.generator)

    path = []
    for step in range(setting.steps):
        drawn = torch.empty_like(bank.theta)
        model.flat(drawn)[:] = noise[step]
        batch = {"sampled": sampled[step], "slot_sampled": slot_sampled[step]} if setting.sample_rate < 1 else {}
        bank.step(**batch, noise=drawn)
        path.append(model.flat(bank.theta).clone())
    errors = []
    for run, bit in enumerate(bits):
        start = model.flat(bank.theta_0)[run]
        draws = (sampled[..., run], slot_sampled[:, run], noise[:, run])
        theirs = train_with_opacus(model, task, setting, pair, bit, start, *draws, dtype, monkeypatch)
        errors += [
            (ours[run] - other).norm() / (other - start).norm() for ours, other in zip(path, theirs, strict=True)
        ]
    return float(max(errors))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@every_model_and_rate
def test_every_step_is_the_step_that_opacus_takes(name, optimizer, q, kind, double, monkeypatch):
    setting = spec(
        sample_rate=q,
        optimizer=optimizer,
        learning_rate=0.1 if optimizer == "sgd" else 0.01,
        steps=3 if name == "large convnet" else STEPS,
    )
    assert furthest_from_opacus(*MODELS[name], kind, setting, double, monkeypatch) < FROM_OPACUS[kind]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("q", [0.25, 0.0625])
def test_figure_4s_training_is_opacus_dp_adam_step_by_step(q, kind, double, monkeypatch):
    rng = np.random.default_rng(2)
    task = data.from_arrays(rng.integers(0, 2, (40, 600)), rng.integers(0, 100, 40), num_classes=100)
    model = models.mlp(task, hidden=(128,))
    assert model.parameters == 89_828, "Table A1"
    table_a1 = DPSGD(0.7, max_grad_norm=5.0, sample_rate=q, steps=STEPS, learning_rate=0.0018, optimizer="adam")
    assert furthest_from_opacus(task, model, kind, table_a1, double, monkeypatch) < FROM_OPACUS[kind]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("kind", CANARIES)
@every_model_and_rate
def test_in_float32_every_step_is_opacus_but_for_rounding(name, q, kind, monkeypatch):
    # The second step's batch is empty; pooling windows close to a tie are rare in two steps, if not in many.
    setting = spec(sample_rate=q, steps=2 if "convnet" in name else STEPS)
    assert furthest_from_opacus(*MODELS[name], kind, setting, torch.float32, monkeypatch) < 1e-5


@every_model
def test_without_noise_and_canary_training_is_clipped_gradient_descent(name):
    task, model = MODELS[name]
    bank = new_bank(task, model, spec(sample_rate=1.0), [0])
    list(bank.train(noise=False))
    module = model.module(model.flat(bank.theta_0)[0])
    for _ in range(STEPS):
        totals = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for x, y in zip(torch.as_tensor(task.x_train), torch.as_tensor(task.y_train), strict=True):
            loss = nn.functional.cross_entropy(module(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient * (1 / (norm + 1e-6)).clamp(max=1)
        with torch.no_grad():
            for parameter, total in zip(module.parameters(), totals, strict=True):
                parameter -= 0.1 * total / 40
    ours = model.module(model.flat(bank.theta)[0])
    for one, other in zip(ours.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


class Recorder(Bank):
    """A bank that writes its randomness down."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.coins, self.noise = [], []

    def step(self, *, sampled, slot_sampled, noise, clip):
        self.coins.append(torch.cat([sampled, slot_sampled[None]]))
        self.noise.append(noise.clone())


def largest_correlation(rows):
    """Over all pairs of rows, in standard deviations of an independent pair's."""
    correlations = np.corrcoef(rows)
    return np.abs(correlations[np.triu_indices(len(rows), 1)]).max() * np.sqrt(rows.shape[1])


@pytest.mark.parametrize("q", [0.5, 0.0625])
def test_masks_and_noise_are_independent_across_models_and_steps(q):
    task, model = MODELS["linear"]
    runs, setting = 48, spec(sample_rate=q, steps=40)
    bank = Recorder(
        model,
        task,
        setting,
        bits=np.zeros(runs, np.int8),
        generator=torch.Generator().manual_seed(11),
        canary=canary("gradient", task, model),
    )
    list(bank.train())
    coins = torch.stack(bank.coins).double().numpy()  # (steps, records and slot, runs)
    noise = model.flat(torch.stack(bank.noise).movedim(0, 2).flatten(2)).view(40, runs, -1).double().numpy()
    # The largest of 1,128 absolute standard normals exceeds 5 once in 1,500 times.
    by_model = np.moveaxis(coins, 2, 0).reshape(runs, -1)
    assert largest_correlation(by_model) < 5
    assert largest_correlation(coins.reshape(40, -1)) < 5
    assert largest_correlation(np.moveaxis(coins, 1, 0).reshape(40, -1)) < 5
    assert np.abs((by_model.mean(axis=1) - q) / np.sqrt(q * (1 - q) / by_model.shape[1])).max() < 4.5
    slot = coins[:, -1]
    assert abs(slot.mean() - q) < 4.5 * np.sqrt(q * (1 - q) / slot.size)

    for rows in (np.moveaxis(noise, 1, 0).reshape(runs, -1), noise.reshape(40, -1)):
        assert largest_correlation(rows) < 5
        for row in rows:
            assert kstest(row, "norm").pvalue > 1e-5
    sizes, firsts = coins.sum(axis=1).ravel(), noise[:, :, 0].ravel()
    assert abs(np.corrcoef(sizes, firsts)[0, 1]) * np.sqrt(sizes.size) < 4.5


@pytest.mark.parametrize("q", [1e-3, 0.0625, 0.3, 0.999])
def test_coins_fall_as_often_as_they_should(q):
    tosses, generator = 2**24, torch.Generator().manual_seed(0)
    heads = int(coins(q, 2**12 + 1, 2**12 - 1, generator).sum())
    assert abs(heads - (tosses - 1) * q) < 4.5 * np.sqrt(tosses * q * (1 - q))


def test_coins_know_their_probability_to_32_bits():
    for q in (1e-9, 2.5 * 2**-24, 0.1, 0.25, 1 - 1e-9):
        assert abs((threshold(q) + 2**31) / 2**32 - q) <= 2**-33 * (1 + 1e-9)
    generator = torch.Generator().manual_seed(0)
    assert not coins(1e-12, 100, 100, generator).any()
    assert coins(1 - 1e-12, 100, 100, generator).all()
    assert coins(0.5, 3, 3, generator).shape == (3, 3)


@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_the_record_in_the_slot_never_contributes(name, kind):
    task, model = MODELS[name]
    changed = data.from_arrays(task.x_train.copy(), task.y_train.copy(), num_classes=10)
    changed.x_train[7] = 100.0
    pair = canary(kind, task, model)
    banks = [new_bank(t, model, spec(), [0, 1], pair) for t in (task, changed)]
    for bank in banks:
        list(bank.train())
    torch.testing.assert_close(banks[0].theta, banks[1].theta, atol=0, rtol=0)


@pytest.mark.parametrize("q", [1.0, 0.3])
@every_model
def test_the_two_worlds_of_a_gradient_differ_in_it_alone(name, q):
    task, model = MODELS[name]
    setting, runs = spec(sample_rate=q, steps=1, learning_rate=1.0), 200 if name == "linear" else 30
    thetas = []
    for bit in (0, 1):
        bank = new_bank(task, model, setting, [bit] * runs, canary("gradient", task, model))
        list(bank.train())
        thetas.append(model.flat(bank.theta))
    difference = thetas[1] - thetas[0]
    touched = difference.abs() > 1e-4
    assert not np.delete(touched.numpy(), 3, axis=1).any()
    # Two clipping bounds apart, divided by q·n, and only where the slot was sampled.
    size = torch.tensor(2 * setting.max_grad_norm / (q * 40))
    found = difference[:, 3][touched[:, 3]]
    torch.testing.assert_close(found, size.expand(len(found)), atol=1e-5, rtol=0)
    assert abs(len(found) / runs - q) < 4 * np.sqrt(q * (1 - q) / runs) + 1e-9


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_against_nothing_the_slot_is_empty_and_still_counts(name, kind, adjacency):
    task, model = MODELS[name]
    setting = spec(sample_rate=1.0, steps=1, learning_rate=1.0)
    alone = canary(kind, task, model).against_nothing(adjacency=adjacency)
    bank = new_bank(task, model, setting, [0, 1], alone)
    assert bank.expected_batch_size == 40
    start = model.flat(bank.theta_0).clone()
    bank.step()
    with_z, without = start - model.flat(bank.theta)

    others = data.from_arrays(np.delete(task.x_train, 7, 0), np.delete(task.y_train, 7), num_classes=10)
    x, y = model.inputs(torch.as_tensor(others.x_train)), torch.as_tensor(others.y_train)
    expected = model.flat(model.clipped_sum(bank.theta_0, x, y, None, 1.0))[1] / 40
    torch.testing.assert_close(without, expected, atol=1e-6, rtol=1e-4)
    # z adds a gradient of its own, of norm C at most, divided by n.
    added = float((with_z - model.flat(model.clipped_sum(bank.theta_0, x, y, None, 1.0))[0] / 40).norm())
    assert added == pytest.approx(1 / 40, rel=1e-3) if kind == "gradient" else 0 < added <= 1 / 40 + 1e-6


@every_model
def test_an_empty_batch_still_adds_noise(name):
    task, model = MODELS[name]
    bank = new_bank(task, model, spec(), [0], canary("gradient", task, model))
    start = bank.theta.clone()
    nobody = torch.zeros(39, 1, dtype=torch.bool)
    bank.step(sampled=nobody, slot_sampled=torch.zeros(1, dtype=torch.bool), noise=torch.ones_like(bank.theta))
    torch.testing.assert_close(start - bank.theta, torch.full_like(start, 0.1 * 0.7 / (0.3 * 40)), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_scores_speak_for_z(name, optimizer, q, kind, adjacency):
    task, model = MODELS[name]
    setting = spec(
        noise_multiplier=1e-3, sample_rate=q, optimizer=optimizer, learning_rate=0.3 if optimizer == "sgd" else 0.003
    )
    pair = canary(kind, task, model)
    if adjacency != "substitute":
        pair = pair.against_nothing(adjacency=adjacency)
    # The same starts, batches and noise in both worlds: what differs is the canary's doing.
    banks = [new_bank(task, model, setting, [bit] * 32, pair) for bit in (0, 1)]
    for bank in banks:
        list(bank.train())
    difference = (banks[0].scores() - banks[1].scores()).numpy()
    assert difference.mean() > 4 * difference.std() / np.sqrt(32)


def test_a_logit_is_log_odds_and_never_saturates():
    task, model = MODELS["linear"]
    bank = new_bank(task, model, spec(), [0, 1], canary("record", task, model))
    bank.theta += torch.randn(bank.theta.shape, generator=bank.generator)
    z, z_prime = canary("record", task, model).z, canary("record", task, model).z_prime
    p = torch.softmax(model.logits(bank.theta, model.inputs(torch.as_tensor(z.x[None]))), dim=1)[0].double()
    odds = [torch.log(p[y] / (1 - p[y])) for y in (z.y, z_prime.y)]
    torch.testing.assert_close(bank.scores().double(), odds[0] - odds[1], atol=1e-4, rtol=1e-4)
    bank.theta *= 1e4
    assert torch.isfinite(bank.scores()).all()


def test_scores_within_the_span_have_the_law_of_scores_outside():
    rng = np.random.default_rng(3)
    task = data.from_arrays(rng.random((20, 60)), rng.integers(0, 10, 20), num_classes=10)
    model, setting = models.linear(task), spec(sample_rate=0.5, noise_multiplier=2.0)
    for kind in CANARIES:
        scores = []
        for inside in (False, True):
            bank = new_bank(
                task, model, setting, np.arange(4_000) % 2, canary(kind, task, model), 7 + inside, within_span=inside
            )
            assert (bank.model.parameters < model.parameters) == inside
            list(bank.train())
            scores.append(bank.scores().numpy())
        for bit in (0, 1):
            assert kstest(scores[0][bit::2], scores[1][bit::2]).pvalue > 1e-3


@pytest.mark.parametrize("kind", CANARIES)
@every_model
def test_the_privatised_gradients_product_is_what_a_watcher_computes(name, kind):
    task, model = MODELS[name]
    setting = spec(sample_rate=0.6, max_grad_norm=0.5, learning_rate=1.0)
    pair = canary(kind, task, model)
    if kind == "gradient":
        pair = CanaryPair(0.5 * pair.z, -0.5 * pair.z, 7, "S2")
    bank = new_bank(task, model, setting, [0, 1], pair)
    bank.advance()
    before = model.flat(bank.theta).clone()
    if kind == "record":
        x, y = model.inputs(torch.as_tensor(pair.z.x[None])), torch.tensor([pair.z.y])
        direction = model.flat(model.clipped_sum(bank.theta, x, y, None, 0.5)).clone()
    else:
        direction = torch.as_tensor(pair.z).expand(2, -1)
    after = bank.watch_gradient()
    bank.advance()
    noisy_sum = (before - model.flat(bank.theta)) * 0.6 * 40
    torch.testing.assert_close(after(), (noisy_sum * direction).sum(dim=1) / 0.25, atol=2e-2, rtol=1e-3)


def test_a_watched_gradient_canary_is_one_in_noise_of_sigma():
    task, model = MODELS["linear"]
    bits = np.arange(4_000) % 2
    bank = new_bank(task, model, spec(sample_rate=1.0, noise_multiplier=3.0), bits, canary("gradient", task, model))
    product = bank.watch_gradient()
    bank.advance()
    seen = product().numpy()
    for bit in (0, 1):
        assert seen[bits == bit].std() == pytest.approx(3, rel=0.1)
    assert seen[bits == 0].mean() - seen[bits == 1].mean() == pytest.approx(2, abs=4.5 * 3 / np.sqrt(1_000))


@every_model
def test_the_distance_of_records_is_that_of_their_clipped_gradients(name):
    task, model = MODELS[name]
    setting = spec(max_grad_norm=0.5)
    pair = canary("record", task, model)
    bank = new_bank(task, model, setting, [0, 1], pair)
    bank.advance()
    found, alone = bank.distance(), new_bank(task, model, setting, [0, 1], pair.against_nothing(adjacency="zero_out"))
    alone.theta.copy_(bank.theta)
    for run in range(2):
        module, clipped = model.module(model.flat(bank.theta)[run]), []
        for x, y in (pair.z, pair.z_prime):
            loss = nn.functional.cross_entropy(module(torch.as_tensor(x[None])), torch.tensor([y]))
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
            clipped.append(gradient * (0.5 / (gradient.norm() + 1e-6)).clamp(max=1))
        assert float(found[run]) == pytest.approx(float((clipped[0] - clipped[1]).norm()), rel=1e-4)  # 2C is 1
        assert float(alone.distance()[run]) == pytest.approx(float(clipped[0].norm()), rel=1e-4)


@every_model
def test_the_distance_of_crafted_gradients_is_two_clipping_bounds(name):
    task, model = MODELS[name]
    pair = canary("gradient", task, model)
    for shown, distance in ((pair, 1.0), (pair.against_nothing(adjacency="add_remove"), 0.5)):
        bank = new_bank(task, model, spec(), [0, 1, 1], shown)
        assert bank.distance().tolist() == pytest.approx([distance] * 3)


def test_blocks_shrink_with_the_model_alone():
    class Sized:
        parameters = 0

    sizes = []
    for Sized.parameters in (1, 540, 89_828, 2**20, 2**20 + 1, 2**24, 2**40):
        sizes.append(block_size(Sized))
    assert sizes == [128, 128, 128, 128, 64, 8, 1]


def test_blocks_of_an_audit_never_share_a_seed():
    from dpsub._core.streams import torch_seed

    seeds = [torch_seed(3, "audit", block) for block in range(100_000)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**32
    assert all(torch_seed(a, "audit") != torch_seed(b, "audit") for a, b in combinations(range(60), 2))
    assert torch_seed(3, "audit") != torch_seed(3, "crafter")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@every_model
def test_a_gpu_takes_the_same_steps(name, optimizer, kind):
    from dpsub.trainers.devices import matmul_precision

    task, model = MODELS[name]
    setting = spec(optimizer=optimizer, learning_rate=0.1 if optimizer == "sgd" else 0.01)
    banks = [
        Bank(
            model,
            task,
            setting,
            bits=np.array([0, 1, 1], np.int8),
            generator=torch.Generator(device),
            canary=canary(kind, task, model),
        )
        for device in ("cpu", "cuda")
    ]
    start = banks[0].theta.clone()
    banks[1].theta.copy_(start)
    banks[1].theta_0.copy_(start)
    generator = torch.Generator().manual_seed(2)
    with matmul_precision("highest"):
        for _ in range(STEPS):
            sampled = torch.rand(40, 3, generator=generator) < 0.3
            noise = torch.empty_like(start).normal_(generator=generator)
            for bank in banks:
                here = sampled.to(bank.device)
                bank.step(sampled=here[:-1], slot_sampled=here[-1], noise=noise.to(bank.device))
            moved = (banks[0].theta - start).norm()
            assert float((banks[1].theta.cpu() - banks[0].theta).norm() / moved) < 1e-5
    torch.testing.assert_close(banks[1].scores().cpu(), banks[0].scores(), atol=1e-4, rtol=1e-4)
