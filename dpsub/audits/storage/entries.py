"""A shard's document: what was trained, where, and the checksums of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from reprlib import repr as short

from dpsub._core import checks
from dpsub.audits.shard_provenance import Made
from dpsub.audits.storage.documents import GROUP, Json, same
from dpsub.audits.storage.files import is_number
from dpsub.audits.storage.layout import Layout
from dpsub.audits.storage.recorded import check_files, text, whole


@dataclass(frozen=True)
class Entry:
    """A shard's document."""

    audit: str
    number: int
    runs: str
    models: int
    device: str
    cpu_capability: str
    versions: Mapping[str, str]
    commit: str
    seconds: float
    session: str
    elapsed: float
    finished: str
    files: Mapping[str, str]
    failed: Mapping[str, str] = field(default_factory=dict)  # messages of failed runs; not written if there are none

    @property
    def made(self) -> Made:
        return Made(self.device, self.cpu_capability, dict(self.versions), self.commit, self.seconds)

    def check_fits(self, layout: Layout) -> None:
        """Check that this is a shard of the audit with this layout, with all its files and no others.

        Raises:
            ValueError: if it is not.
        """
        if self.number >= layout.cut.shards:
            raise ValueError(f"number must be below {layout.cut.shards}, got {self.number}")
        shard = layout.cut.shard(self.number)
        if (self.runs, self.models) != (str(shard), shard.stop - shard.start):
            raise ValueError(f"runs and models must be {str(shard)!r} and {shard.stop - shard.start}")
        if other := self.files.keys() ^ layout.chunks_of_shard(self.number):
            raise ValueError(f"files must be those of shard {self.number}, which differ in {min(other)[:80]!r}")
        if self.failed and not layout.of_training:
            raise ValueError("failed must not be there: only runs of a training function may fail")
        for run in self.failed:
            if not (is_number(run) and shard.start <= int(run) < shard.stop):
                raise ValueError(f"failed must name runs from {shard.start} to {shard.stop - 1}, got {run[:80]!r}")


def entry_of(document: Json) -> Entry:
    """The entry that a document holds.

    Raises:
        ValueError: if it holds anything else than dpsub writes.
    """
    attributes = document["attributes"]
    names = [one.name for one in fields(Entry) if one.name != "failed" or "failed" in attributes]
    if not same(document, {**GROUP, "attributes": attributes}) or attributes.keys() != {*names, "sha256"}:
        raise ValueError("it is not a group with the attributes of a shard")
    for name in ("audit", "runs", "device", "cpu_capability", "commit", "session", "finished"):
        text(name, attributes[name])
    for name, least in (("number", 0), ("models", 1)):
        whole(name, attributes[name], least)
    for name in ("seconds", "elapsed"):
        if isinstance(attributes[name], list | dict):
            raise ValueError(f"{name} must be a number, got {short(attributes[name])}")
        checks.real(name, attributes[name], at_least=0)
    versions = attributes["versions"]
    if not isinstance(versions, dict) or not {"torch", "dpsub"} <= versions.keys():
        raise ValueError(f"versions must name those of torch and dpsub, got {short(versions)}")
    for name, version in versions.items():
        text(f"versions of {text('versions', name)!r}", version)
    check_files(attributes["files"])
    failed = attributes.get("failed", {"0": ""})
    if not isinstance(failed, dict) or not failed:
        raise ValueError(f"failed must name failed runs and their messages, got {short(failed)}")
    for run, message in failed.items():
        text(f"failed of {text('failed', run)!r}", message)
    return Entry(**{name: attributes[name] for name in names})
