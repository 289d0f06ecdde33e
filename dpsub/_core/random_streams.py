"""Independent streams of randomness: one for each seed, purpose and block."""

from __future__ import annotations

import numpy as np

PURPOSES = {
    "data": 0, "crafter": 1, "audit": 2, "worst_case": 3, "repeat": 6, "plan": 7,
    "training": 8, "steps": 9, "learning": 10, "distillation": 11, "one_run": 12, "proxy": 13,
}  # fmt: skip


def stream(seed: int, purpose: str, block: int = 0) -> np.random.Generator:
    """The generator of one block of one purpose.

    The same seed may serve the data, the crafter and the audit, and what an adversary draws must say nothing about the
    coins that it has to guess. The purpose is in the spawn key because the entropy does not separate streams:
    `SeedSequence((seed, 0))` is the same as `SeedSequence(seed)`.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose], block)))


def torch_seed(seed: int, purpose: str, block: int = 0) -> int:
    """A seed for torch: 32 bits, since its CPU generator reads no more.

    No two blocks of one seed and purpose share a seed, because an odd multiplier permutes the whole numbers modulo
    2³². Random 32-bit seeds would soon repeat.
    """
    first = np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose],)).generate_state(1)[0]
    return (int(first) + block * 0x9E3779B1) % 2**32


def repeat_seeds(seed: int, repeats: int) -> list[int]:
    """The seeds of the repeats of `audit(seed=seed, repeats=repeats)`; the first is `seed` itself.

    The others are whole numbers below 2⁵³, spawned from it. An audit with `seed=repeat_seeds(seed, repeats)[i]` is the
    i-th repeat alone. To craft a canary for each repeat:
    `[crafters.gradient(task, model, spec, seed=s) for s in repeat_seeds(seed, repeats)]`.

    >>> repeat_seeds(0, 2)[0]
    0
    """
    spawned = [np.random.SeedSequence(seed, spawn_key=(PURPOSES["repeat"], i)) for i in range(1, repeats)]
    return [seed, *(int(child.generate_state(1, np.uint64)[0]) >> 11 for child in spawned)]
