"""A private step of each of several libraries, and its audit.

`python -m studies.faults.libraries studies/faults/libraries.csv NAME` audits a library that is installed, and appends a
row to the table. Libraries whose requirements differ have environments of their own, where PYTHONPATH leads to dpsub.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from itertools import repeat

import numpy as np

from studies.kept import continued

MAX_GRAD_NORM = 1.5
NOISE_MULTIPLIER = 1.0
SIZES = (12, 8)  # of two parameters
BATCH_SIZE = 8
STEPS = 5_000
DELTA = 1e-5
ALPHA = 0.025  # of the bound, and of the test of the noise
STD = NOISE_MULTIPLIER * MAX_GRAD_NORM
TINY = 1e-6  # flwr cannot clip an update of zeros


def split(flat):
    """The gradients of the two parameters, along the last axis."""
    return [flat[..., : SIZES[0]], flat[..., SIZES[0] :]]


def opacus():
    import torch
    from opacus.optimizers import DPOptimizer

    weights = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    optimizer = DPOptimizer(
        torch.optim.SGD(weights, lr=0.0),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        expected_batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(0),
    )

    def step(gradients):
        for one, rows in zip(weights, split(torch.from_numpy(gradients)), strict=True):
            one.grad_sample = rows.clone()
        optimizer.step()
        released = torch.cat([one.grad for one in weights]).clone()
        optimizer.zero_grad()
        return released

    return step


def jax_privacy():
    import jax
    from jax_privacy.clipping import clipped_fun
    from jax_privacy.noise_addition import gaussian_privatizer

    clipped_sum = clipped_fun(lambda rows: rows, l2_clip_norm=MAX_GRAD_NORM, keep_batch_dim=False)
    noise = gaussian_privatizer(stddev=STD, prng_key=jax.random.key(0))
    state = noise.init([np.zeros(size, np.float32) for size in SIZES])
    update = jax.jit(lambda rows, now: noise.update(clipped_sum(rows), now))

    def step(gradients):
        nonlocal state
        released, state = update(split(gradients), state)
        return np.concatenate(released)

    return step


def optax():
    import jax
    from optax.contrib import differentially_private_aggregate

    aggregate = differentially_private_aggregate(MAX_GRAD_NORM, NOISE_MULTIPLIER, jax.random.key(0))
    state = aggregate.init(None)
    update = jax.jit(aggregate.update)

    def step(gradients):
        nonlocal state
        released, state = update(split(gradients), state)
        return np.concatenate(released)

    return step


def opake():
    import torch
    from opake.dpsgd.clipping.fun import clipped_fun
    from opake.dpsgd.noise import gaussian_noise
    from opake.random import key

    clip, clip_state = clipped_fun(lambda *rows: list(rows), batch_argnums=(0, 1), clipping_norm=MAX_GRAD_NORM)
    add_noise, noise_state = gaussian_noise(noise_multiplier=NOISE_MULTIPLIER, key=key(0))

    def step(gradients):
        nonlocal clip_state, noise_state
        rows = split(torch.from_numpy(gradients))
        clipped, clip_state = clip(*rows, state=clip_state)
        noised, noise_state = add_noise(clipped, noise_state)
        return torch.cat(list(noised.pytree))

    return step


def tensorflow_query():
    import tensorflow as tf
    from tensorflow_privacy import GaussianSumQuery

    query = GaussianSumQuery(MAX_GRAD_NORM, STD)
    state = query.initial_global_state()

    @tf.function(reduce_retracing=True)
    def release(rows):
        params = query.derive_sample_params(state)
        zeros = [tf.zeros(size) for size in SIZES]
        summed = query.initial_sample_state(zeros)
        for record in tf.unstack(rows, BATCH_SIZE):
            summed = query.accumulate_record(params, summed, split(record))
        return tf.concat(query.get_noised_result(summed, state)[0], axis=0)

    return lambda gradients: release(tf.constant(gradients))


def tensorflow_optimizer():
    import tensorflow as tf
    from tensorflow_privacy import DPKerasSGDOptimizer

    weights = [tf.Variable(tf.zeros(size)) for size in SIZES]
    optimizer = DPKerasSGDOptimizer(
        l2_norm_clip=MAX_GRAD_NORM, noise_multiplier=NOISE_MULTIPLIER, num_microbatches=BATCH_SIZE, learning_rate=1.0
    )

    @tf.function(reduce_retracing=True)
    def release(rows):
        # the gradient of a record's loss is its row
        with tf.GradientTape(persistent=True) as tape:
            losses = sum(tf.linalg.matvec(part, one) for part, one in zip(split(rows), weights, strict=True))
        pairs = optimizer._compute_gradients(losses, weights, tape=tape)
        return tf.concat([gradient for gradient, _ in pairs], axis=0)

    return lambda gradients: release(tf.constant(gradients))


def flower(examples=lambda row: 1):
    """Clients are the records: a gradient is what a client adds."""
    import logging

    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), NOISE_MULTIPLIER, MAX_GRAD_NORM, BATCH_SIZE)
    zeros = [np.zeros(size, np.float32) for size in SIZES]
    strategy.current_round_params = zeros
    fine = Status(Code.OK, "")

    def step(gradients):
        results = [(None, FitRes(fine, ndarrays_to_parameters(split(row)), examples(row), {})) for row in gradients]
        released, _ = strategy.aggregate_fit(1, results, [])
        return np.concatenate(parameters_to_ndarrays(released))

    return step


def flower_weighted():
    """A client that moves the model has 100 examples, others have one."""
    return flower(lambda row: 100 if np.abs(row).max() > TINY else 1)


def deepee(reduce="mean", seed=None):
    """Its forward pass needs a GPU with newer torch, and is not audited."""
    import torch
    from deepee import PrivacyWrapper

    weights = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    model = torch.nn.Module()
    model.parts = torch.nn.ParameterList(weights)
    private = PrivacyWrapper(model, BATCH_SIZE, MAX_GRAD_NORM, NOISE_MULTIPLIER, seed=seed)

    def step(gradients):
        for replica, row in zip(private.models, torch.from_numpy(gradients), strict=True):
            for one, part in zip(replica.parts, split(row), strict=True):
                one.grad = part.clone()
        private._forward_succesful = True
        private.clip_and_accumulate(reduce)
        private.noise_gradient()
        private.prepare_next_batch()
        return torch.cat([one.grad for one in weights])

    return step


def pfl():
    from pfl.privacy import GaussianMechanism
    from pfl.stats import MappedVectorStatistics

    mechanism = GaussianMechanism(MAX_GRAD_NORM, NOISE_MULTIPLIER)

    def step(gradients):
        users = [
            mechanism.constrain_sensitivity(MappedVectorStatistics(dict(enumerate(split(row)))))[0] for row in gradients
        ]
        total = users[0]
        for one in users[1:]:
            total = total + one
        released, _ = mechanism.add_noise(total, BATCH_SIZE)
        return np.concatenate(list(released.values()))

    return step


@dataclass(frozen=True)
class Recipe:
    """How a library's step is made, and what else its audit must know."""

    audited: str
    make: Callable
    divided_by: float = 1.0
    asked: dict = field(default_factory=dict)


STILL = np.full((BATCH_SIZE - 1, sum(SIZES)), TINY, np.float32)
RECIPES = {
    "opacus": Recipe("DPOptimizer.step", opacus, BATCH_SIZE),
    "jax-privacy": Recipe("clipped_fun, gaussian_privatizer", jax_privacy),
    "optax": Recipe("differentially_private_aggregate", optax, BATCH_SIZE),
    "opake": Recipe("clipped_fun, gaussian_noise", opake),
    "tensorflow-privacy": Recipe("GaussianSumQuery", tensorflow_query),
    "tensorflow-privacy, optimizer": Recipe("DPKerasSGDOptimizer", tensorflow_optimizer, BATCH_SIZE),
    "flwr": Recipe("server-side fixed clipping, equal clients", flower, BATCH_SIZE),
    "flwr, weighted": Recipe(
        "server-side fixed clipping, a client with 100 examples, others 1",
        flower_weighted,
        BATCH_SIZE,
        {"gradients": repeat(STILL)},
    ),
    "pfl": Recipe("GaussianMechanism", pfl),
    "deepee": Recipe("PrivacyWrapper", deepee, BATCH_SIZE),
    "deepee, sum": Recipe('PrivacyWrapper, clip_and_accumulate("sum")', lambda: deepee(reduce="sum")),
    "deepee, seed": Recipe("PrivacyWrapper(seed=1)", lambda: deepee(seed=1), BATCH_SIZE),
}


def package(name):
    """The library of a recipe."""
    return name.partition(",")[0]


def audited(name, *, steps=STEPS, adjacency="substitute", seed=0):
    """The dataset of the audit of a recipe, by its name."""
    import dpsub

    recipe = RECIPES[name]
    claimed = {"max_grad_norm": MAX_GRAD_NORM, "noise_multiplier": NOISE_MULTIPLIER, "batch_size": BATCH_SIZE}
    asked = {"adjacency": adjacency, "steps": steps, "alpha": ALPHA, "seed": seed, "progress": False} | recipe.asked
    return dpsub.audit_mechanism(recipe.make(), parameters=SIZES, divided_by=recipe.divided_by, **claimed, **asked)


def measured(cell, **asked):
    """What the audit of a recipe finds: a row of the table."""
    import dpsub
    from dpsub import accounting

    name = cell["name"]
    seen = audited(name, **asked)
    bound = dpsub.bound(seen, delta=DELTA, alpha=ALPHA)
    about = seen.attrs
    apart = 2 if about["adjacency"] == "substitute" else 1
    claimed = accounting.gdp_epsilon(apart / NOISE_MULTIPLIER, DELTA)
    row = {
        "library": package(name),
        "version": metadata.version(package(name)),
        "audited": RECIPES[name].audited,
        "adjacency": about["adjacency"],
        "noise_multiplier": NOISE_MULTIPLIER,
        "delta": DELTA,
        "claimed": round(claimed, 3),
        "bound": round(bound.epsilon, 3),
        "noise": round(float((seen.noise.astype(float) ** 2).mean() ** 0.5), 4),
        "records_left": round(about.get("records_left", 0.0), 4),
        "records_left_error": round(about.get("records_left_error", 0.0), 4),
        "steps": seen.sizes["observation"],
        "verdict": "refuted" if bound.epsilon > claimed or "fault" in about else "consistent",
        "fault": about.get("fault", ""),
        "fault_at": about.get("fault_at", ""),
        "clipping": about.get("clipping", ""),
    }
    return [row]


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    continued(path, ("name",), [(name,) for name in names], measured)
