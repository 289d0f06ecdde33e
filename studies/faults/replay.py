"""A private step run again with the same noise and another record: what a record changes, without statistics."""

import numpy as np
import pandas as pd

from dpsub._core import checks

ALLOWED = {"substitute": 2.0, "add_remove": 1.0, "zero_out": 1.0}  # in units of max_grad_norm
ROUNDING = 1e-4  # of a difference, in units of max_grad_norm
LONG, SHORT = 10, 0.1  # norms of records, in units of max_grad_norm
HUGE = 1e30  # its square is infinite in float32
TIMES = 8  # records of the large batch, in units of batch_size
LATE = "after other batches"
NOT_THE_SAME = (
    "make must return a step with the same noise at each call, but the same batches gave other sums. Seed each "
    "generator in make, global ones too"
)


@np.errstate(all="ignore")
def replay(make, *, max_grad_norm, adjacency, parameters=20, batch_size=8, divided_by=1.0, seed=0):
    """Give a private step two batches that differ in one record, with the same noise, and compare its sums.

    The noise cancels. What is left is what the record changes: at most 1 in units of `max_grad_norm` if one batch lacks
    it, or has a row of zeros in its place, and at most 2 if another record is in its place. Two batches follow, the
    same in both runs, and their sums must be equal bit by bit: nothing of the record may be kept. The empty batch is
    the same in both, and must have a sum.

    Whether the noise is enough, and is new in each step, is not tested. A step that draws more or fewer random numbers
    for another batch has other noise in the two runs, and is reported, though this alone breaks no promise of DP.

    Args:
        make: called without arguments. Returns a new step each time, which has kept nothing and has the same noise:
            make seeds its generators, global ones too. The step takes gradients (batch, parameters) float32, and
            returns their private sum (parameters,), as for `dpsub.audit_mechanism`.
        max_grad_norm: > 0; C, to which the step clips.
        adjacency: "substitute", "add_remove" or "zero_out".
        parameters: their number.
        batch_size: ≥ 2; records of a batch, where a case does not say otherwise.
        divided_by: what the step divides the sum by.
        seed: of the gradients.

    Returns:
        A row for each case: the norm of the `difference` of the two sums in units of `max_grad_norm`, which is not
        finite if one of them is not, NaN if the step raises an error; what is `allowed`; and the `verdict`: "passes",
        "too far", "not finite", or "raises" with the kind of error. The last row is about the later steps of all cases.

    Raises:
        ValueError: if the same batches give other sums when the step is made again, or sums that are not finite
            numbers (parameters,).

    Source: *Privacy in Theory, Bugs in Practice* (arXiv:2602.17454), which compares what reaches the noise inside of
    an algorithm.
    """
    most = ALLOWED[checks.choice("adjacency", adjacency, [*ALLOWED])]
    rng, scale = np.random.default_rng(seed), divided_by / max_grad_norm

    def ordinary(count):
        """Gradients whose norms lie on both sides of max_grad_norm."""
        rows = rng.normal(size=(count, parameters))
        norms = max_grad_norm * 10 ** rng.uniform(-1, 1, (count, 1))
        return rows * norms / np.linalg.norm(rows, axis=1, keepdims=True)

    def sums(batches):
        step = make()
        return [scale * np.asarray(step(np.array(batch, np.float32)), float) for batch in batches]

    usual = [ordinary(batch_size) for _ in range(2)]
    once, again = sums(usual), sums(usual)
    for total in once:
        checks.array("step's sum of an ordinary batch", total, shape=(parameters,))
    if not np.array_equal(once, again):
        raise ValueError(NOT_THE_SAME)
    [direction] = ordinary(1)
    direction *= max_grad_norm / np.linalg.norm(direction)
    others, crowd, far = ordinary(batch_size - 1), ordinary(TIMES * batch_size), LONG * direction
    first = np.arange(parameters) == 0
    short, other = SHORT * direction, {"substitute": [-far], "add_remove": [], "zero_out": [0 * far]}[adjacency]
    cases = {
        "long record": (far, others),
        "short record": (short, others),
        "zero record": (0 * far, others),
        "huge record": (HUGE * direction, others),
        "one nan": (np.where(first, np.nan, far), others),
        "all nan": (np.nan * far, others),
        "one infinite": (np.where(first, np.inf, far), others),
        "all infinite": (np.copysign(np.inf, far), others),
        "copies of the record": (far, [far] * len(others)),
        "other records zero": (far, 0 * others),
        "record alone": (far, []),
        "short record alone": (short, []),
        "many records": (far, crowd),
        LATE: (far, others),
    }
    pairs = {name: ([record, *known], [*other, *known]) for name, (record, known) in cases.items()}
    pairs["empty batch"] = [], []
    rows, later = {}, [0.0]
    for name, pair in pairs.items():
        before = usual if name == LATE else []
        try:
            found = [sums([*before, np.reshape(batch, (-1, parameters)), *usual])[len(before) :] for batch in pair]
        except Exception as error:  # tells the two batches apart, as a sum does
            rows[name] = np.nan, most, f"raises {type(error).__name__}"
            continue
        change, *changes = np.linalg.norm(np.subtract(*found), axis=1)
        rows[name] = change, most, _verdict(change, most + ROUNDING)
        later += changes
    rows["later steps"] = np.max(later), 0.0, _verdict(np.max(later), 0.0)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["difference", "allowed", "verdict"])


def told(table):
    """The cases that fail, in words, and the largest difference in units of max_grad_norm."""
    kinds = []
    for verdict, cases in table[table.verdict != "passes"].groupby("verdict", sort=False):
        size = f", {cases.difference.max():.1f} C" if verdict == "too far" else ""
        kinds.append(f"{verdict}{size}: {', '.join(cases.index)}")
    return "; ".join(kinds) or "passes"


def _verdict(change, most):
    if not np.isfinite(change):
        return "not finite"
    return "passes" if change <= most else "too far"
