r"""Algorithm 1 around a training function that is not dpsub's."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import xarray as xr

from dpsub._core import checks
from dpsub.audits import cluster, training_runs
from dpsub.audits.destinations import Memory, Place
from dpsub.audits.failed_runs import warn_of_failures
from dpsub.audits.progress import Bars
from dpsub.audits.stored_audits import located
from dpsub.audits.training_plans import MOST_RUNS, TrainingPlan, checked_parameters, checked_steps

MOST_PROCESSES = 1024


def audit_training(
    train: Callable[[int, int], Any],
    *,
    runs: int,
    adjacency: str,
    name: str,
    parameters: Mapping[str, bool | int | float | str] | None = None,
    seed: int = 0,
    steps: Sequence[int] | None = None,
    store: str | os.PathLike[str] | None = None,
    repair: bool = False,
    retry: bool = False,
    client: Any = None,
    processes: int = 1,
    progress: bool = True,
) -> xr.Dataset:
    r"""Call your own training function `runs` times, each time with z or z′ by a fair coin, and collect the scores.

    The function may use any framework. A run fails if `train` raises an error, or returns anything but finite scores
    of the right shape. A failed run costs itself alone: the others go on, and the dataset comes without it. Estimators
    take failed runs as if they had never been asked for. That is sound if a run fails for reasons that have nothing to
    do with its world. If training fails more often with z than with z′, the runs that are left are no fair sample, and
    an ε from them may be wrong in either direction. The attributes `failed_with_z` and `failed_with_z_prime` count the
    failures of each world.

    Args:
        train: `train(bit, seed)` trains one model, with z if `bit` is 0 and with z′ if it is 1, and returns its score:
            a number that is higher the more the model speaks for z, or one number for each of `steps`. `seed` is a
            whole number below 2³², another one for each run. All randomness of a run must come from it, or the audit
            cannot be repeated. dpsub calls it once at a time in each process.
        runs: R from 1 to 1e6: models of both worlds together.
        adjacency: "substitute", "add_remove" or "zero_out": how z′ differs from z.
        name: of the audit. A store of another name is refused: change it when you change what `train` does.
        parameters: of the training, by name: numbers and texts. They become attributes, and a store of others is
            refused. Figures and estimators read `noise_multiplier`, `sample_rate`, `steps` and `scenario`.
        seed: ≥ 0; of the coins and of the runs' seeds.
        steps: the numbers of steps after which a run was scored, in increasing order, one for each score that `train`
            returns. None: one score for each run, at the coordinate 1.
        store: a folder for the audit, by convention `….zarr`, as in `audit`: the same call resumes from it. Each run is
            written when it is done; of more than 4,096 runs, several neighbours are written together. `load`, `status`,
            `pack` and `load_all` read it. In `xarray.open_zarr`, failed runs have scores of NaN.
        repair: train damaged runs of the store again. Without it, damage is an error.
        retry: train the failed runs of the store again, with the same seeds. Without it, they stay failed.
        client: a `dask.distributed.Client`, or a scheduler's address, as in `audit`. A worker trains one run at a time,
            so give each one thread.
        processes: train so many runs side by side, each in a process of its own on this machine. `train` must then be
            importable by name, and a script must call this function under `if __name__ == "__main__":`. Set the number
            of threads in `train`, as by `torch.set_num_threads(1)`: else the processes compete for cores, and sums may
            be rounded differently than in one process.
        progress: show a progress bar.

    Returns:
        A dataset as `audit` returns: `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1
        for z′. The attributes hold name, parameters, adjacency, runs, seed and versions. If runs failed, they are
        missing, the coordinate `run` has the numbers of the others, and the attributes `failed_runs` and
        `failed_messages` name them.

    Raises:
        ValueError: before any training, if an argument is out of range, `train` does not take (bit, seed), or the store
            is something else's folder, another audit, or damaged. After it, if all runs failed.
        OSError: with the path, if the store cannot be written, or another process is writing it. Finished runs stay.
        RuntimeError: if a process of `processes` ended in the middle of a run.
        ConnectionError: if no scheduler answers.
        KeyboardInterrupt: on Ctrl-C. Finished runs are in the store.

    Warns:
        UserWarning: if runs failed.

    Source: *Beyond Membership*, Algorithm 1.

    >>> import numpy as np
    >>> def train(bit, seed):
    ...     return np.random.default_rng(seed).normal(1 - 2 * bit)
    >>> audited = audit_training(train, runs=8, adjacency="substitute", name="one normal", progress=False)
    >>> dict(audited.sizes), audited.attrs["name"]
    ({'run': 8, 'step': 1}, 'one normal')
    """
    _check_train(train)
    plan = TrainingPlan(
        name=checks.text("name", name),
        adjacency=checks.adjacency(adjacency),
        parameters=checked_parameters(parameters),
        runs=checks.whole("runs", runs, at_most=MOST_RUNS),
        seed=checks.whole("seed", seed, at_least=0),
        observed=checked_steps(steps),
    )
    for flag, value in (("repair", repair), ("retry", retry), ("progress", progress)):
        checks.flag(flag, value)
    processes = checks.whole("processes", processes, at_most=MOST_PROCESSES)
    if processes > 1:
        if client is not None:
            raise ValueError(f"processes must be 1 with a client, whose workers train, got {processes}")
        training_runs.check_importable(train)
    place: Place = Memory(plan)
    if store is not None:
        from dpsub.audits.storage.store import Store  # zarr takes a quarter of a second to import

        path = located(store)
        place = Store(path, plan, repair=repair)
        if retry and place.failed and path.is_file():
            raise ValueError(f"retry needs a store that is a folder, got the packed {path}: give another path")
    if place.missing or (retry and place.failed):
        try:
            _train(train, plan, place, retry, client, processes, progress)
        except (KeyboardInterrupt, SystemExit) as interruption:
            if store is None:
                raise
            done = runs - sum(shard.stop - shard.start for shard in place.missing)
            message = f"{done:,} of {runs:,} runs are in {store}; the same call goes on from there"
            raise type(interruption)(message) from None
    else:
        place.settle()
    found = place.dataset()
    warn_of_failures(found)
    return found


def _train(
    train: training_runs.Train,
    plan: TrainingPlan,
    place: Place,
    retry: bool,
    client: Any,
    processes: int,
    progress: bool,
) -> None:
    """Train the missing runs, and write them."""
    with ExitStack() as stack:
        if client is not None:
            client = stack.enter_context(cluster.connected(client))
        writer = stack.enter_context(place.writing())
        shards = [*writer.missing, *(writer.failed if retry else ())]
        if client is not None:
            results = training_runs.on_cluster(client, train, plan, shards)
        elif processes > 1:
            results = training_runs.in_processes(train, plan, shards, processes)
        else:
            results = training_runs.here(train, plan, shards)
        bars = stack.enter_context(Bars(plan, shards, progress))
        for shard, trained in stack.enter_context(closing(results)):
            writer.write(shard, trained.arrays, trained.made, trained.failed)
            bars.count(shard, len(trained.failed))


def _check_train(train: object) -> None:
    expected = "train must be a function that is called as train(bit, seed)"
    if not callable(train) or inspect.iscoroutinefunction(train):
        raise ValueError(f"{expected}, got {train!r}")
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # of some functions that are not written in Python
        return
    try:
        signature.bind(0, 0)
    except TypeError as error:
        raise ValueError(f"{expected}, got one of {signature}: {error}") from None
    names = list(signature.parameters)
    if names[0] == "seed" or names[1:2] == ["bit"]:
        raise ValueError(f"{expected}, in this order, got one of {signature}: exchange them")
