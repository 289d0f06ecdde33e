"""Runs of a training function that failed: what is kept of them, and the dataset without them."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping

import numpy as np
import xarray as xr

from dpsub._core import checks

MOST_MESSAGE = 500  # characters


def message_of(error: BaseException) -> str:
    """The kind and message of an error, as a text that can be stored."""
    told = "".join(traceback.format_exception_only(error)).strip()[:MOST_MESSAGE]
    return "".join(character if checks.drawable(character) else "�" for character in told) or type(error).__name__


def without_failed(found: xr.Dataset, failed: Mapping[int, str]) -> xr.Dataset:
    """The dataset without failed runs, which its attributes name.

    Args:
        found: all runs, failed ones included.
        failed: the messages of failed runs, by number.

    Raises:
        ValueError: if all runs failed.
    """
    numbers = sorted(failed)
    if numbers and len(numbers) == found.sizes["run"]:
        raise ValueError(
            f"train must not fail in every run, got {len(numbers):,} failures of as many runs, the first: {failed[0]}; "
            "mend it, and call again, with retry=True if the audit is stored"
        )
    bits = found.bit.values[numbers]
    about = {f"failed_with_{world}": int((bits == bit).sum()) for bit, world in enumerate(("z", "z_prime"))}
    if not numbers:
        return found.assign_attrs(about)
    kept = np.setdiff1d(np.arange(found.sizes["run"]), numbers)
    messages = [failed[number] for number in numbers]
    return (
        found.isel(run=kept).assign_coords(run=kept).assign_attrs(about, failed_runs=numbers, failed_messages=messages)
    )


def warn_of_failures(found: xr.Dataset, *, of: str = "", depth: int = 1) -> None:
    """Warn if the attributes of a dataset name failed runs.

    Args:
        found: the dataset, without the failed runs.
        of: what the message begins with.
        depth: how many calls lie between this one and the user's.
    """
    about = found.attrs
    if failed := about.get("failed_runs"):
        warnings.warn(
            f"{of}{len(failed):,} of {about['runs']:,} runs failed, {about['failed_with_z']:,} with z and "
            f"{about['failed_with_z_prime']:,} with z′, and are not in the dataset. The first is run {failed[0]}: "
            f"{about['failed_messages'][0]}. If failures depend on the world, bounds from the other runs may be wrong: "
            "mend train, and call again with retry=True if the audit is stored",
            stacklevel=depth + 2,
        )
