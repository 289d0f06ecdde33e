r"""Algorithm 1 around a training function that is not dpsub's."""

from __future__ import annotations

import inspect
import platform
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Unpack
from zlib import crc32

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES
from dpsub._core.provenance import commit, versions
from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.execution import Options, execute
from dpsub.audits.plans import Arrays, Cut, Made, Plan, Results, Shard, Tick, check_same, unfilled
from dpsub.models.identity import Identity

Plain = bool | int | float | str
Train = Callable[[int, int], Any]
OWN_FUNCTION = "own function"  # the attribute `trained_by`, which audits by dpsub's own trainers do not have
MOST_MESSAGE = 500  # characters
MOST_SHARDS = 4096  # of an audit: one for each run up to so many runs
RESERVED = (  # names of attributes that a dataset has beside the parameters
    *("trained_by", "name", "adjacency", "runs", "seed", "observed_steps", "parameters", "train"),
    *("device", "cpu_capability", "commit", "wall_seconds", "last_written"),
)
FRAMEWORKS = ("opacus", "jax", "flax", "optax", "tensorflow", "keras")
_turn = threading.RLock()  # one run at a time in a process: seeds of torch and NumPy are the process's


@checks.checked("adjacency", "seed", "runs", name=checks.text, retry=checks.flag)
def audit_training(
    train: Callable[[int, int], Any],
    *,
    runs: int,
    adjacency: str,
    name: str,
    parameters: Mapping[str, bool | int | float | str] | None = None,
    seed: int = 0,
    steps: Sequence[int] | None = None,
    retry: bool = False,
    **options: Unpack[Options],
) -> xr.Dataset:
    r"""Call your own training function `runs` times, each time with z or z′ by a fair coin, and collect the scores.

    The function may use any framework. A run fails if `train` raises an error, or returns anything but finite scores
    of the right shape. A failed run costs itself alone: the others go on, and the dataset comes without it. Estimators
    take failed runs as if they had never been asked for. That is sound if a run fails for reasons that have nothing to
    do with its world. If training fails more often with z than with z′, the runs that are left are no fair sample, and
    an ε from them may be wrong in either direction. The attributes `failed_with_z` and `failed_with_z_prime` count the
    failures of each world.

    All randomness of a run must come from its seed. If all runs of a world have the same score, or differ by rounding
    alone, `train` seems to ignore it: a warning says so, the coordinate `seed_ignored` marks the runs, and no bound of
    them is valid. A score of few values may be the same by itself, if it tells the worlds apart in all runs: return one
    of more values. What is not found: a `train` that takes a part of its randomness from elsewhere, such as its noise
    but not its batches, that ignores its seed in one world only, or whose seeds lead to a few different runs.

    Args:
        train: `train(bit, seed)` trains one model, with z if `bit` is 0 and with z′ if it is 1, and returns its score:
            a number that is higher the more the model speaks for z, or one number for each of `steps`. `seed` is a
            whole number below 2³², another one for each run. dpsub calls it once at a time in each process.
        runs: R ≥ 1: models of both worlds together.
        adjacency: "substitute", "add_remove" or "zero_out": how z′ differs from z.
        name: of the audit. A store of another name is refused, as is one of a `train` with another source, or that of
            functions and classes of yours that it names, or with other numbers and texts there. Change the name when
            you change what cannot be seen, such as arrays and lists.
        parameters: of the training, by name: numbers and texts. They become attributes, and a store of others is
            refused. Figures and estimators read `noise_multiplier`, `sample_rate`, `steps` and `scenario`.
        seed: ≥ 0; of the coins and of the runs' seeds.
        steps: the numbers of steps after which a run was scored, in increasing order, one for each score that `train`
            returns. None: one score for each run, at the coordinate 1.
        retry: train the failed runs of the store again, with the same seeds. Without it, they stay failed. You may have
            mended `train`: its source is not compared.
        options: as in `audit`, of which `allow_mix` changes nothing, and `device` no number. Each run is stored when it
            is done; of more than 4,096 runs, several neighbours are stored together. To train side by side on this
            machine, give `client=distributed.Client(n_workers=4, threads_per_worker=1)`, in a script under
            `if __name__ == "__main__":`. A worker trains one run at a time, so give each one thread. It must be able to
            import `train`, if that is in a file, and the libraries that it uses.

    Returns:
        A dataset as `audit` returns: `score` (run, step) float32, higher speaks for z; `bit` (run,) int8, 0 for z and 1
        for z′. The attributes hold name, parameters, adjacency, runs, seed and versions. If runs failed, they are
        missing, the coordinate `run` has the numbers of the others, and the attributes `failed_runs` and
        `failed_messages` name them.

    Raises:
        ValueError: before any training, if an argument is out of range, `train` does not take (bit, seed), or the store
            is some other file, another audit, or damaged. After it, if all runs failed.
        sqlite3.Error, OSError, KeyboardInterrupt: as `audit`.

    Warns:
        UserWarning: if runs failed, or if `train` seems to ignore its seed.

    Source: *Beyond Membership*, Algorithm 1.

    >>> import numpy as np
    >>> def train(bit, seed):
    ...     return np.random.default_rng(seed).normal(1 - 2 * bit)
    >>> audited = audit_training(train, runs=8, adjacency="substitute", name="one normal", progress=False)
    >>> dict(audited.sizes), audited.attrs["name"]
    ({'run': 8, 'step': 1}, 'one normal')
    """
    _check_train(train)
    plain = _parameters(parameters or {})
    observed = checks.array("steps", [1] if steps is None else steps, shape=("scores",), kind=np.int64, at_least=1)
    code = f"code and constants {crc32(Identity(constants=True).tell('train', train).encode()):08x}"
    plan = OwnTraining(train, name, adjacency, plain, runs, seed, tuple(observed.tolist()), code, retry)
    return execute(plan, **options)


@dataclass(frozen=True, eq=False)
class OwnTraining(Plan):
    """What an audit of a training function trains."""

    call: ClassVar[str] = "audit_training"
    calls_users: ClassVar[bool] = True
    grows: ClassVar[bool] = True

    train: Train
    name: str
    adjacency: str
    parameters: Mapping[str, Plain]
    runs: int
    seed: int
    observed: tuple[int, ...]
    code: str
    retry: bool

    @property
    def title(self) -> str:
        return self.name

    @cached_property
    def cut(self) -> Cut:
        return Cut(self.runs, most=MOST_SHARDS)

    def empty(self) -> xr.Dataset:
        variables = {
            "score": unfilled(LONG_NAMES["score"], {"run": self.runs, "step": len(self.observed)}),
            "bit": unfilled(LONG_NAMES["bit"], {"run": self.runs}, "int8"),
        }
        return xr.Dataset(variables, {"step": np.array(self.observed, np.int64)})

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return {
            "trained_by": OWN_FUNCTION,
            "name": self.name,
            "adjacency": self.adjacency,
            "runs": self.runs,
            "seed": self.seed,
            "observed_steps": list(self.observed),
            "parameters": " ".join(self.parameters),
            "train": self.code,
            **self.parameters,
        }

    @cached_property
    def bits(self) -> NDArray[np.int8]:
        """The world of each run, by a fair coin."""
        return stream(self.seed, "training").integers(0, 2, self.runs, dtype=np.int8)

    def resumed(self, attributes: Mapping[str, Any], arrays: Arrays) -> OwnTraining:
        plan = replace(self, code=attributes.get("train", self.code)) if self.retry else self
        check_same(attributes, plan.attributes)
        return plan

    def run(self, shard: Shard, device: torch.device, tick: Tick) -> Results:
        scores = np.full((shard.runs, len(self.observed)), np.nan, np.float32)
        bits, failed = self.bits[shard.start : shard.stop], {}
        with _turn:
            for row, run in enumerate(range(shard.start, shard.stop)):
                try:
                    returned = self.train(int(bits[row]), torch_seed(self.seed, "training", run))
                    single = len(self.observed) == 1 and not np.ndim(returned)
                    scores[row] = checks.array(
                        "train's scores", returned, shape=() if single else scores.shape[1:], kind=np.float32
                    )
                except Exception as error:  # whatever it is, it costs this run alone
                    failed[run] = "".join(traceback.format_exception_only(error)).strip()[:MOST_MESSAGE]
                tick(1)
        return Results({"score": scores, "bit": bits}, failed)

    def made(self, device: torch.device, seconds: float = 0.0) -> Made:
        loaded = {name: getattr(sys.modules[name], "__version__", "") for name in FRAMEWORKS if name in sys.modules}
        return Made(platform.machine(), "", versions("torch") | loaded, commit(), seconds)


def _check_train(train: Train) -> None:
    """Check that it takes the bit and the seed, in this order."""
    try:
        names = list(inspect.signature(train).bind(0, 0).arguments)
    except ValueError:  # of some functions that are not written in Python
        return
    except TypeError as error:
        raise ValueError(f"train must be called as train(bit, seed), got {train!r}: {error}") from None
    if names[0] == "seed" or names[1:2] == ["bit"]:
        raise ValueError(
            f"train must be called as train(bit, seed), got {train!r} of {', '.join(names)}: exchange them"
        )


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Plain]:
    """The parameters of a training function, by name and in order."""
    for name in parameters:
        if name in RESERVED or name.startswith(("version_", "failed_")):
            raise ValueError(f"parameters must have names other than an audit's own attributes, got {name!r}")
    return {
        name: value.item() if isinstance(value, np.generic) else value for name, value in sorted(parameters.items())
    }
