"""Audits on disk: a folder that can be resumed, or a finished audit packed into one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Any

import xarray as xr

from dpsub._core import CanaryPair
from dpsub._core.canary_pair import RESERVED
from dpsub.audits.any_plans import AnyPlan, function_of
from dpsub.audits.destinations import with_learned
from dpsub.audits.failed_runs import without_failed
from dpsub.audits.learned_scores import Learned
from dpsub.audits.plans import Plan, Shard, fingerprint
from dpsub.audits.shard_provenance import Made
from dpsub.audits.step_plans import StepPlan, is_of_steps, one_after_the_other
from dpsub.audits.storage.attributes import told
from dpsub.audits.storage.contents import Contents
from dpsub.audits.storage.decoding import check_memory, decoded
from dpsub.audits.storage.documents import Json, same
from dpsub.audits.storage.files import LOCK
from dpsub.audits.storage.foreign import leftovers
from dpsub.audits.storage.locks import naming, take
from dpsub.audits.storage.recorded import LEARNING
from dpsub.audits.storage.stored_canaries import canaries_of
from dpsub.audits.storage.stored_learning import stored_learning
from dpsub.audits.storage.writer import StoreWriter, planned
from dpsub.audits.training_plans import TrainingPlan

SAME = 1e-6  # relative: a noise multiplier calibrated again on another machine may differ in its last digits


class Store:
    """An audit on disk. The constructor reads and checks it; only `writing` changes it."""

    def __init__(self, path: Path, plan: AnyPlan, *, repair: bool = False) -> None:
        self.path = path
        self._asked = plan
        self._repair = repair
        self._read()

    def _read(self) -> None:
        self.contents = Contents(self.path)
        self.plan = self._asked
        if self.contents.damaged and not (self._repair and not self.contents.packed):
            raise ValueError(self.contents.damage)
        if self.contents.attributes:
            self.plan = _as_stored(self._asked, self.contents)
        if any(entry.audit != self.plan.fingerprint for entry in self.contents.entries.values()):
            raise ValueError(
                f"store holds shards of another audit than the one asked for, {self.path}: give the parameters that it "
                "was made with, or another path"
            )
        if self.contents.packed and self.missing:
            raise ValueError(f"store is packed but not complete, {self.path}: give another path")

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards if shard.number not in self.contents.entries]

    @property
    def failed(self) -> list[Shard]:
        return [self.plan.shards[number] for number, entry in self.contents.entries.items() if entry.failed]

    @property
    def made(self) -> list[Made]:
        return [entry.made for entry in self.contents.entries.values()]

    def take(self, learned: Learned) -> None:
        """Take what the plan's score was learned to be. If another process has begun the audit since, its own holds."""
        self.plan, self._asked = with_learned(self.plan, learned), with_learned(self._asked, learned)

    @contextmanager
    def writing(self) -> Iterator[StoreWriter]:
        """Lock the store and open it for writing. It is begun or repaired if necessary."""
        if self.path.is_dir() and any(self.path.iterdir()):
            leftovers(self.path, self.contents.layout or planned(self.plan, self.contents)[1])
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / LOCK, "ab")  # noqa: SIM115
        with lock:
            take(lock, self.path)
            self._read()
            writer = StoreWriter(self.contents, self.plan, lock)
            try:
                yield writer
            finally:
                with suppress(OSError):  # the shards' documents hold the same information
                    writer.put_root()

    def settle(self) -> None:
        """Repair what damage, or an interrupted process, left behind. Called when no shard is missing."""
        if self.contents.packed:
            return
        if self.contents.damaged:
            with self.writing():
                pass
        elif self.contents.attributes["models_stored"] != self.contents.models:
            with suppress(OSError, ValueError), self.writing():  # what follows reads and checks it all again
                pass

    def dataset(self) -> xr.Dataset:
        """The whole audit, decoded from the same bytes that were compared with their checksums."""
        self.contents = Contents(self.path, with_numbers=True)
        if self.contents.damaged:
            raise ValueError(self.contents.damage)
        if self.missing:
            raise ValueError(
                f"store was changed while it was being written, {self.path}: the same call trains the missing shards"
            )
        return _decoded(self.contents, self.plan.attributes)


def read(path: Path) -> xr.Dataset:
    """Read a complete audit without its task, model and canary. Its attributes describe them."""
    contents = Contents(path, with_numbers=True)
    if not contents.begun:
        raise ValueError(f"store must be an audit's folder, got {path}, where there is none")
    if contents.damaged:
        raise ValueError(contents.damage)
    about, layout = contents.about, contents.layout
    assert layout is not None
    if any(entry.audit != fingerprint(about) for entry in contents.entries.values()):
        raise ValueError(
            f"store must hold one audit, got {path}, whose shards come from another audit than its attributes say: "
            "copy it again from an undamaged original"
        )
    models = layout.cut.runs * layout.cut.repeats
    if len(contents.entries) < layout.cut.shards:
        raise ValueError(
            f"store must be complete, got {path} with {contents.models:,} of {models:,} models: run the same audit "
            "again to complete it"
        )
    return _decoded(contents, about)


def _decoded(contents: Contents, about: Json) -> xr.Dataset:
    assert contents.layout is not None
    try:
        check_memory(contents.layout.variables.values())
    except ValueError as error:
        raise ValueError(f"store must fit the memory, got {contents.path}: {error}: free some") from None
    with contents.as_written("data"):
        found = decoded(contents.files, contents.layout, told(about, contents), contents.failed)
    if is_of_steps(about):
        return one_after_the_other(found)
    return without_failed(found, contents.failed) if contents.layout.of_training else found


def _as_stored(asked: AnyPlan, contents: Contents) -> AnyPlan:
    """The plan with the stored noise multiplier and canaries, if they equal those asked for up to rounding."""
    attributes, others = contents.attributes, []
    calls = [function_of(about) for about in (attributes, asked.attributes)]
    if calls[0] != calls[1]:
        raise _other_audit([f"stored by dpsub.{calls[0]}, asked for by dpsub.{calls[1]}"], contents)
    if not isinstance(asked, TrainingPlan):
        noise_multiplier = attributes["noise_multiplier"]
        if isclose(noise_multiplier, asked.spec.noise_multiplier, rel_tol=SAME):
            asked = replace(asked, spec=replace(asked.spec, noise_multiplier=noise_multiplier))
    if not isinstance(asked, Plan):
        _check_same(asked, contents)
        return asked
    mine = asked.attributes
    for name in (*mine, *(LEARNING - mine.keys() & attributes.keys())):
        value, stored = mine.get(name), attributes.get(name)
        if stored != value and not name.startswith(("canary_", "learned_")):
            others.append(f"{name}: stored {stored!r}, asked for {value!r}")
    canaries: tuple[CanaryPair, ...] | None = asked.canaries
    stored, value = attributes["canary_fingerprint"], asked.attributes["canary_fingerprint"]
    if stored != value and not any(name.startswith("canary/z") for name in contents.damaged):
        assert contents.layout is not None
        with contents.as_written("canary"):
            canaries = canaries_of(contents.files, contents.layout, asked)
    if canaries is None:
        others.append(f"canary_fingerprint: stored {stored!r}, asked for {value!r}")
    if others or canaries is None:
        raise _other_audit(others, contents)

    def details(i: int) -> dict[str, Any]:
        names = {name.removeprefix("canary_"): name for name in attributes if name.startswith("canary_")}
        several = len(asked.canaries) > 1
        return {
            name: attributes[full][i] if several else attributes[full]
            for name, full in names.items()
            if name not in RESERVED
        }

    taken = tuple(replace(canary, details=details(i)) for i, canary in enumerate(canaries))
    plan = replace(asked, canaries=taken, learning=stored_learning(asked, contents))
    return replace(plan, canary=taken[0]) if isinstance(plan, StepPlan) and taken else plan


def _check_same(asked: AnyPlan, contents: Contents) -> None:
    """Check that a store is that of this audit, parameter by parameter."""
    stored, wanted, others = contents.about, asked.attributes, []
    for name in {**wanted, **stored}:
        told = [repr(about[name]) if name in about else "nothing" for about in (stored, wanted)]
        if not same(stored.get(name), wanted.get(name)) or told.count("nothing") == 1:
            others.append(f"{name}: stored {told[0]}, asked for {told[1]}")
    if others:
        raise _other_audit(others, contents)


def _other_audit(others: list[str], contents: Contents) -> ValueError:
    differences = "".join(f"\n  {other}" for other in others)
    return ValueError(
        f"store holds another audit, {contents.path}:{differences}\ngive another path, or these parameters"
    )
