r"""An audit of one private step, in any framework: per-record gradients go in, a noisy sum comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch.utils import _pytree as pytree
from tqdm.auto import tqdm

from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES, numbered
from dpsub._core.noise_test import NoiseTest, Summary
from dpsub._core.provenance import commit, versions
from dpsub._core.random_streams import stream
from dpsub.accounting.dominating_pairs import distance
from dpsub.audits.steps import OBSERVATION

SPREAD = 1.0  # the records' norms lie so many powers of ten around max_grad_norm
ERRORS = 5.0  # standard errors of the records' share that no noise explains
LEAST_SHARE = 1e-3  # of it, which rounding may leave; and the least sum, in units of max_grad_norm
ALONG = ("shifted", "opposite")  # batches of records along the canary
CALLS = 20  # with the same gradients: discrete noise on one parameter may be equal in several by chance
NOT_NEW = (
    "the same gradients gave the same sum at each call: step adds no noise, or draws it from the same seed or key each "
    "time. Let it keep its generator between calls"
)

Array = NDArray[np.float64]
Gradients = NDArray[np.float32]


@checks.checked(
    "max_grad_norm",
    "adjacency",
    "steps",
    "noise_multiplier",
    "alpha",
    "seed",
    "progress",
    batch_size=partial(checks.whole, at_least=2),
    divided_by=partial(checks.real, above=0),
    canary_norm=partial(checks.real, at_least=1),
)
def audit_mechanism(
    step: Callable[[Any], Any],
    *,
    max_grad_norm: float,
    adjacency: str,
    steps: int = 2_000,
    batch_size: int = 8,
    parameters: Any = 20,
    divided_by: float = 1.0,
    noise_multiplier: float | None = None,
    gradients: Iterable[Any] | str = "random",
    canary_norm: float = 10.0,
    alpha: float = 0.05,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    r"""Call your private step many times, with z or z′ in the batch by a fair coin, and score what comes out.

    Each batch holds random gradients, whose norms lie on both sides of `max_grad_norm` C, and a canary at a random
    place: z is a gradient along a random direction v, which correct clipping leaves at Cv, and z′ is its opposite
    under substitution, a row of zeros for "zero_out", and no row for "add_remove". dpsub clips the other rows to the
    norm C and sums them itself, in float64, and subtracts them from what `step` returned: ε is about an adversary who
    knows all other records. The score is what is left along v, in units of C. If `step` adds noise of standard
    deviation σC it is N(±1, σ²), or N(1, σ²) against N(0, σ²). `dpsub.bound` takes the dataset, and bounds the ε of one
    step by bets, which allow that steps depend on earlier ones.

    With the canary taken out as well, only noise is left, in all coordinates. Its root mean square in units of C is
    the variable `noise`: about the noise multiplier, if clipping is as above. It is a measurement and no bound. With
    the `noise_multiplier` that is claimed, bets against this noise find in a few steps that it is less, or comes again.

    It is not seen how batches are sampled, and whether an accountant is right.

    Args:
        step: called with (batch, parameters) float32, a gradient for each record. It returns the clipped and noised
            sum (parameters,): a NumPy array, a tensor, or anything else that NumPy reads. Before the first step it is
            called with the first batch until its sum differs, at most 20 times, to see whether its noise is new.
        max_grad_norm: > 0; C, to which `step` clips the norm of a record's gradient.
        adjacency: "substitute", "add_remove" or "zero_out": how z′ differs from z.
        steps: ≥ 1; one observation each.
        batch_size: ≥ 2; records of a batch, the canary among them.
        parameters: their number, or the numbers of entries of several parameters, one after the other. With several,
            noise that is missing in one of them, or is that of another, is named. Or the parameters themselves, arrays
            of any library in dictionaries, lists and tuples (a pytree of JAX or Flax): `step` then takes and returns
            the same form, with a dimension of records in front of each array that it takes, and so do `gradients`.
        divided_by: > 0; what `step` divides the sum by, such as the batch size if it returns the mean.
        noise_multiplier: > 0; σ as it is claimed. None: the noise is measured, but not tested.
        gradients: of the other records.

            - "random": as above. After the audit, `step` is called with `steps` // 4 batches of each of the next kinds,
              to see whether a canary moves their sums by more.
            - "shifted": along v, of norm C, −3C, 5C, −7C …, after the canary. If gradients are averaged in pairs, or
              other microbatches of even size, before they are clipped, one more record shifts all of them: it then
              changes the sum by several C, where add/remove allows 1.
            - "opposite": all −v, after the canary. If the sum is divided by the number of records, one more changes it
              by up to 2C.
            - an iterable of arrays (records, parameters), one for each step. A generator can compute them at the
              current parameters of a training, which `step` updates; the training then has the canaries in it.
              `batch_size` is not used. The audit ends with it, or after `steps`.
        canary_norm: ≥ 1; the norm of the canary before clipping, in units of C.
        alpha: 1e-12 < alpha < 0.5; the probability with which noise that is right is called wrong.
        seed: ≥ 0; of gradients, canaries and coins. The noise is `step`'s own.
        progress: show a progress bar.

    Returns:
        A dataset as `audit_steps` returns: `score` (observation,) float32, higher speaks for z, and `bit`
        (observation,) int8, 0 for z and 1 for z′; besides `noise` (observation,). Attributes hold the arguments and
        what was found:

        - `fault`, in words, and `fault_at`, a step: what is wrong with the noise. Missing if nothing was found. Without
          `noise_multiplier`, only noise that is the same at each call is. No other way to clip is taken for a fault.
        - `records_left` and its standard error `records_left_error`: the share of the other records' clipped sum that
          is still in what is left. It is 0 if `step` clips the norm of each record to C, and sums. Missing if the noise
          comes again, since it then has a share of any sums.
        - `clipping`, in words, if no noise explains that share, or if a canary moves the sums of "shifted" or
          "opposite" batches by more than it may. It is a message and no verdict: other clipping may be private, too.

    Raises:
        ValueError: if an argument is out of range; if `step` returns anything but finite numbers (parameters,); or if
            `gradients` are not finite numbers (records, parameters), or none.

    Source: *Tight Auditing*, Algorithm 2.

    >>> rng = np.random.default_rng(0)
    >>> def step(gradients):
    ...     norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    ...     clipped = gradients / np.maximum(norms, 1)
    ...     return clipped.sum(axis=0) + rng.normal(scale=0.7, size=gradients.shape[1])
    >>> claimed = {"max_grad_norm": 1.0, "noise_multiplier": 1.0}
    >>> audited = audit_mechanism(step, **claimed, adjacency="substitute", steps=500, progress=False)
    >>> audited.attrs["fault"], round(float((audited.noise**2).mean() ** 0.5), 2)
    ('it has about 70 % of the standard deviation that is claimed, in all parameters', 0.7)
    """
    asked = _Step(step, parameters, divided_by, max_grad_norm)
    sizes, rng, between = asked.sizes, stream(seed, "audit"), stream(seed, "audit", 2)
    others: Iterable[Gradients]
    if isinstance(gradients, str):
        kind = checks.choice("gradients", gradients, ("random", *ALONG))
        others = _random(rng, batch_size - 1, sum(sizes), max_grad_norm)
    else:
        kind = "own"
        others = (asked.joined("gradients", rows, "records").astype(np.float32) for rows in gradients)
    test = None if noise_multiplier is None else NoiseTest(alpha, sizes, seed)
    observations: list[tuple[float, int, float]] = []
    sums: list[Array] = []
    order = [kind] * steps + [*ALONG] * (steps // 4 if kind == "random" else 0)
    bar = tqdm(order, unit=" steps", desc="mechanism", disable=not progress)
    for batches, known in zip(bar, others, strict=False):
        direction = rng.normal(size=sum(sizes))
        direction /= np.linalg.norm(direction)
        bit, place = int(rng.integers(2)), int(rng.integers(len(known) + 1))
        if batches in ALONG:
            known, place = _along(direction, len(known), batches) * np.float32(max_grad_norm), 0
        sign = (1.0, -1.0 if adjacency == "substitute" else 0.0)[bit]
        batch = known
        if sign or adjacency == "zero_out":
            canary = sign * canary_norm * max_grad_norm * direction
            batch = np.insert(known, place, canary, axis=0)
        if not observations:
            first = asked(batch)
            fault = NOT_NEW if all(np.array_equal(first, asked(batch)) for _ in range(CALLS - 1)) else None
        rows = known.astype(np.float64)
        factors: Array = max_grad_norm / np.maximum(np.linalg.norm(rows, axis=1), max_grad_norm)
        records = factors @ rows / max_grad_norm
        left = asked(batch) - records
        score = float(left @ direction)
        left -= sign * direction
        if test is not None and noise_multiplier is not None and len(observations) < steps:
            # Bets are on a density, which whole numbers have once they are spread between their neighbours.
            spread = asked.grid * between.uniform(-0.5, 0.5, len(left))
            over = (left + spread) / noise_multiplier, records / noise_multiplier
            test.observe(Summary.of(*over, sizes, test.places))
        observations.append((score, bit, math.sqrt(left @ left / len(left))))
        along = sign * direction
        of_records = [left @ records, left @ along, records @ records, records @ along, sign**2]
        sums.append(np.array([*of_records, left @ direction, (records + along) @ direction]))
    if not observations:
        raise ValueError("gradients must hold an array for each step, got none: an iterator can be used only once")
    scores, bits, noise = (np.array(column) for column in zip(*observations, strict=True))
    kinds, bits = np.array(order[: len(bits)]), bits.astype(np.int8)
    clipping = _records_left(np.array(sums), divided_by, kinds) | _moved(scores, bits, kinds, adjacency)
    scores, bits, noise = scores[:steps], bits[:steps], noise[:steps]
    about: dict[str, Any] = {
        "audited": "mechanism",
        "name": getattr(step, "__qualname__", type(step).__name__),
        "adjacency": adjacency,
        "max_grad_norm": max_grad_norm,
        "gradients": kind,
        "batch_size": batch_size,
        "parameters": sizes,
        "divided_by": divided_by,
        "noise_multiplier": noise_multiplier,
        "canary_norm": canary_norm,
        "alpha": alpha,
        "seed": seed,
        "steps": len(scores),
        **({} if fault or (test and test.repeats) else clipping),
        "fault": fault or (test and test.fault),
        "fault_at": 1 if fault else test and test.found_at,
        "commit": commit(),
        **{f"version_{name}": version for name, version in versions().items()},
    }
    long_names = {**LONG_NAMES, "noise": "root mean square of what is left, in units of max_grad_norm"}
    values = {"score": scores.astype(np.float32), "bit": bits, "noise": noise.astype(np.float32)}
    made = xr.Dataset(
        {name: (OBSERVATION, column, {"long_name": long_names[name]}) for name, column in values.items()},
        coords={"step": (OBSERVATION, np.arange(1, len(scores) + 1))},
        attrs={name: value for name, value in about.items() if value is not None},
    )
    return numbered(made)


class _Step:
    """The step that is audited, with checks of what it returns.

    Attributes:
        sizes: the numbers of entries of its parameters.
        grid: how far apart what it may return is, in units of the clipping bound, if it has returned whole numbers
            only; else 0.
    """

    def __init__(self, step: Callable[[Any], Any], parameters: Any, divided_by: float, bound: float) -> None:
        self._step, self._scale, self.sizes = step, divided_by / bound, list[int]()
        if not any(map(np.shape, pytree.tree_leaves(parameters))):  # numbers of entries: all are in one array
            self.sizes = np.atleast_1d(checks.array("parameters", parameters, kind=np.int64, at_least=1)).tolist()
            parameters = np.empty(sum(self.sizes))
        found, self._form = pytree.tree_flatten_with_path(parameters)
        self._shapes = {path: np.shape(array) for path, array in found}
        self.sizes = self.sizes or [math.prod(shape) for shape in self._shapes.values()]
        self.grid = self._scale

    def __call__(self, batch: Gradients) -> Array:
        """The private sum of a batch, in units of the clipping bound."""
        places = np.cumsum([math.prod(shape) for shape in self._shapes.values()])[:-1]
        parts = zip(np.split(batch.copy(), places, axis=1), self._shapes.values(), strict=True)
        taken = [part.reshape(-1, *shape) for part, shape in parts]  # step may change what it is given
        total = self.joined("step's sum", self._step(pytree.tree_unflatten(taken, self._form)))
        if (total % 1).any():
            self.grid = 0.0
        return total * self._scale

    def joined(self, name: str, given: Any, *rows: str) -> Array:
        """(*rows, parameters), of an array or of a pytree's arrays, whose dictionaries may have any order."""
        found: dict[Any, Any] = {(): given} if self._form.is_leaf() else dict(pytree.tree_flatten_with_path(given)[0])
        if found.keys() != self._shapes.keys():
            raise ValueError(f"{name} must be a pytree of the form of parameters, got another one: {repr(given)[:80]}")
        arrays = [checks.array(name, _readable(found[key]), shape=(*rows, *self._shapes[key])) for key in self._shapes]
        return np.concatenate([array.reshape(*array.shape[: len(rows)], -1) for array in arrays], axis=-1)


def _readable(given: Any) -> Any:
    """What NumPy can read: it does not know bfloat16, of torch or of JAX."""
    if getattr(given, "dtype", None) is torch.bfloat16:
        return given.float()
    return np.asarray(given, np.float32) if "bfloat16" in str(getattr(given, "dtype", "")) else given


def _random(rng: np.random.Generator, records: int, parameters: int, bound: float) -> Iterator[Gradients]:
    """Batches without end, of random directions, with norms from a tenth of the bound to ten times it."""
    while True:
        rows = rng.normal(size=(records, parameters))
        norms = bound * 10 ** rng.uniform(-SPREAD, SPREAD, (records, 1))
        yield (rows * norms / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _along(direction: Array, records: int, kind: str) -> Gradients:
    """Rows along the canary, which is put before them, in units of the clipping bound.

    "shifted": 1, -3, 5, -7 … Any even number of neighbours has a negative sum, and a positive one if one more row
    comes before them. "opposite": all -1.
    """
    number = np.arange(records)
    lengths = (-1.0) ** number * (1 + 2 * number) if kind == "shifted" else -np.ones(records)
    return np.outer(lengths, direction).astype(np.float32)


def _moved(scores: Array, bits: Array, kinds: NDArray[np.str_], adjacency: str) -> dict[str, Any]:
    """What says that z in place of z′ moves sums along it by more than is allowed, and by more than random ones."""

    def moved(kind: str) -> tuple[float, float]:
        """By how much, in units of the clipping bound, and the squared standard error."""
        with_z, without = (scores[(kinds == kind) & (bits == bit)] for bit in (0, 1))
        if min(len(with_z), len(without)) < 2:
            return 0.0, 0.0
        error = with_z.var(ddof=1) / len(with_z) + without.var(ddof=1) / len(without)
        return float(with_z.mean() - without.mean()), float(error)

    usual, usual_error = moved("random")
    found = {kind: moved(kind) for kind in ALONG}
    least = max(usual, distance(adjacency))
    more = {
        kind: by for kind, (by, error) in found.items()
        if by - least > max(LEAST_SHARE, ERRORS * math.sqrt(error + usual_error))
    }  # fmt: skip
    if not more:
        return {}
    worst = max(more, key=more.__getitem__)
    by_number = adjacency == "add_remove" and "shifted" not in more
    reason = "the sum is divided by the number of records" if by_number else "records are averaged before clipping"
    advice = "" if kinds[0] == worst else f": audit with gradients={worst!r} to bound its ε"
    return {
        "clipping": f"z in place of z′ moves some sums by about {more[worst]:.2g} max_grad_norm, and not by "
        f"{distance(adjacency):g} at most, as if {reason}{advice}"
    }


def _records_left(sums: Array, divided_by: float, kinds: NDArray[np.str_]) -> dict[str, Any]:
    """The share of the records' sum S in what is left, r, by least squares on S and the canary's v, and what it says.

    Args:
        sums: (steps, 7) r·S, r·v, S·S, S·v, v·v, and r and S + v along the direction of the canary.
        divided_by: as it was asked.
        kinds: (steps,) "random", "own", or one of `ALONG`.
    """
    shifted, sums = sums[kinds == "shifted", 5:], sums[kinds == kinds[0]]
    products, squares = sums[:, :2], sums[:, [2, 3, 3, 4]].reshape(-1, 2, 2)
    if squares[:, 0, 0].mean() < LEAST_SHARE**2:
        return {}
    inverse = np.linalg.pinv(squares.sum(axis=0))
    shares = inverse @ products.sum(axis=0)
    errors = (products - squares @ shares) @ inverse
    share, error = float(shares[0]), float(np.linalg.norm(errors[:, 0]))
    about: dict[str, Any] = {"records_left": share, "records_left_error": error}
    if abs(share) > max(LEAST_SHARE, ERRORS * error) and len(sums) > 1:
        more = "more" if share > 0 else "less"
        about["clipping"] = (
            f"the sums hold about {100 * abs(share):.0f} % {more} of the records than clipping to max_grad_norm leaves"
        )
        # Of what was divided, the canary is missing as much as the records are; other clipping treats it differently.
        alike = abs(shares[0] - shares[1]) < 2 * np.linalg.norm(errors[:, 0] - errors[:, 1])
        # Whatever stands beside what: shifted pairs must be missing as much.
        beyond = shifted @ [1.0, -share]
        alike &= len(beyond) < 2 or abs(beyond.mean()) < ERRORS * max(beyond.std() / math.sqrt(len(beyond)), error)
        if alike and share > -1:
            beside = "" if divided_by == 1 else f" and not {divided_by:g}"
            divisor = divided_by / (1 + share)
            about["clipping"] += f", as if they were divided by about {divisor:.2g}{beside}, which divided_by can say"
    return about
