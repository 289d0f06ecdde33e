"""Stored audits: their status, and reading and packing complete ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr

from dpsub._core import checks
from dpsub.audits.failed_runs import warn_of_failures
from dpsub.audits.one_run_plans import is_of_one_run, one_run_title
from dpsub.audits.shard_provenance import joined
from dpsub.audits.training_plans import is_of_training


class Status(NamedTuple):
    """How far a stored audit is.

    Attributes:
        store: its folder, or its file if it is packed.
        audit: scenario and task, or the name of an audit of a training function.
        models: how many the audit has when complete, over all repeats; 0 if damage leaves that unknown.
        stored: how many are stored and undamaged.
        damaged: damaged or missing files, and what is wrong with each.
        being_written: whether a process is writing it, as far as the file system can tell.
        device, commit: where the shards come from; several are joined by " + ".
        wall_seconds: the total time of the sessions that wrote them, each up to its last shard.
        failed: how many of the stored runs of a training function failed.
    """

    store: Path
    audit: str
    models: int
    stored: int
    damaged: dict[str, str]
    being_written: bool
    device: str
    commit: str
    wall_seconds: float
    failed: int = 0

    @property
    def complete(self) -> bool:
        """Whether all models are stored and no file is damaged."""
        return self.stored == self.models and not self.damaged

    def __str__(self) -> str:
        state = "complete" if self.complete else "being written" if self.being_written else "not complete"
        made = f", {self.wall_seconds:,.0f} s on {self.device}, commit {self.commit}" if self.stored else ""
        damaged = "".join(f"\n  damaged: {name} {problem}" for name, problem in self.damaged.items())
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.store}: {self.audit}, {self.stored:,} of {self.models:,} models{failed}, {state}{made}{damaged}"


def load(store: str | os.PathLike[str]) -> xr.Dataset:
    """Read a complete stored audit. The task, model and canary are not needed; every checksum is computed again.

    Audits of others are safe to read: only what dpsub itself writes is decoded, and only regular files below the store
    are opened. Files that no audit has are not read.

    Args:
        store: its folder, or its packed file.

    Returns:
        What `audit`, `audit_steps`, `audit_one_run` or `audit_training` returned.

    Raises:
        ValueError: if there is no audit, if it is damaged or not complete, or if it is not as dpsub writes it.

    Warns:
        UserWarning: if runs of a training function failed, as `audit_training` does.
    """
    from dpsub.audits import storage

    found = storage.read(located(store))
    warn_of_failures(found)
    return found


def status(store: str | os.PathLike[str]) -> Status:
    """How far a stored audit is, and whether a file is damaged: every checksum is computed again.

    Args:
        store: its folder, or its packed file.

    Raises:
        ValueError: if there is no audit, or it is not as dpsub writes it.
    """
    from dpsub.audits.storage.contents import Contents
    from dpsub.audits.storage.locks import is_taken

    path = located(store)
    contents = Contents(path)
    if not contents.begun:
        raise ValueError(f"store must be an audit's folder, got {path}, where there is none")
    about, layout, made = contents.attributes, contents.layout, [entry.made for entry in contents.entries.values()]
    return Status(
        store=path,
        audit=_title(about),
        models=layout.cut.runs * layout.cut.repeats if layout else 0,
        stored=contents.models,
        damaged=contents.damaged,
        being_written=is_taken(path),
        device=joined(each.device for each in made),
        commit=joined(each.commit for each in made),
        wall_seconds=contents.wall_seconds,
        failed=len(contents.failed),
    )


def _title(about: Mapping[str, Any]) -> str:
    if not about:
        return "unknown"
    if is_of_training(about):
        return str(about["name"])
    return one_run_title(about) if is_of_one_run(about) else f"{about['scenario']} on {about['task']}"


def pack(store: str | os.PathLike[str]) -> Path:
    """Pack a complete stored audit into one file beside its folder, `NAME.zip`, and remove the folder.

    The file holds everything that was in the folder, checksums and provenance included. `load`, `status` and
    `audit(store=NAME)` read it like the folder; `xarray.open_zarr(zarr.storage.ZipStore("NAME.zip", mode="r"))` opens
    it.

    Args:
        store: its folder, NAME. A store that is packed already stays as it is.

    Returns:
        The file's path.

    Raises:
        ValueError: if there is no audit, if it is damaged or not complete, if a process is writing it, or if the folder
            holds other files.
        OSError: if the packed file does not read back as it was written. The folder stays.
    """
    from dpsub.audits.storage import read
    from dpsub.audits.storage.archive import PACKED, write_archive
    from dpsub.audits.storage.contents import Contents
    from dpsub.audits.storage.files import LOCK, below
    from dpsub.audits.storage.locks import is_taken, naming
    from dpsub.audits.storage.writer import sync_folder

    path = located(store)
    read(path)
    if path.is_file():
        return path
    if is_taken(path):
        raise ValueError(f"store must not be written while it is packed, got {path}, which a process is writing")
    contents = Contents(path, with_numbers=True)
    known, folders = {*contents.files, LOCK}, []
    assert contents.layout is not None
    for name, kind in below(path):
        if kind == "a folder" and contents.layout.owns_folder(name):
            folders.append(name)
        elif kind != "a file" or name not in known:
            raise ValueError(f"store must hold only its audit to be packed, got {path} with {name!r}: move that away")
    packed = path.with_name(path.name + PACKED)
    beside = packed.with_name(f"{packed.name}.partial")
    try:
        with naming(packed):
            if os.path.lexists(beside):  # of a process that was killed
                beside.unlink()
            write_archive(beside, contents.files)
        whole = Contents(beside, with_numbers=True)
        if whole.damaged or whole.files != contents.files:
            raise OSError(f"{beside} does not read back as it was written: check this disk")
        beside.replace(packed)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    sync_folder(packed.parent)
    for name in known:
        (path / name).unlink(missing_ok=True)
    for folder in reversed(folders):
        (path / folder).rmdir()
    path.rmdir()
    return packed


def located(store: str | os.PathLike[str]) -> Path:
    """The absolute path of a store: its folder, or its packed file if there is one."""
    given = checks.path("store", store)
    if "://" in os.fspath(store):
        raise ValueError(f"store must be a path in the file system, got {store!r}")
    try:
        path = given.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"store must be a path in the file system, got {store!r}: {error}") from None
    if not path.name:
        raise ValueError(f"store must be a folder of its own, got {path}")
    packed = path.with_name(path.name + ".zip")
    if not packed.exists():
        return path
    if path.exists():
        raise ValueError(f"store must be one audit, got {path} and, packed, {packed}: remove one of them")
    return packed
