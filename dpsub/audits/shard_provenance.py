"""Where shards come from: devices, versions, commits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from dpsub._core.provenance import commit, versions


class Made(NamedTuple):
    """Where a shard came from."""

    device: str
    cpu_capability: str  # the instructions that torch uses, where it computes on a CPU
    versions: dict[str, str]
    commit: str
    seconds: float

    @property
    def kind(self) -> dict[str, str]:
        """Shards of one audit agree to the last bit if these are equal."""
        versions = {f"version_{name}": self.versions[name] for name in ("torch", "dpsub")}
        return {"device": self.device, "cpu_capability": self.cpu_capability, **versions}


def made_on(device: torch.device, seconds: float = 0.0) -> Made:
    if device.type == "cuda":
        return Made(torch.cuda.get_device_name(device), "", versions("torch"), commit(), seconds)
    return Made(device.type, torch.backends.cpu.get_cpu_capability(), versions("torch"), commit(), seconds)


def origin(made: list[Made]) -> dict[str, str]:
    """Devices and versions as attributes; if there are several, all of them."""
    names = dict.fromkeys(name for each in made for name in each.versions)
    versions = {name: joined(each.versions.get(name, "") for each in made) for name in names}
    found = {name: joined(getattr(each, name) for each in made) for name in ("device", "cpu_capability")}
    return found | {f"version_{name}": version for name, version in versions.items()}


def joined(values: Iterable[str]) -> str:
    return " + ".join(sorted({value for value in values if value}))
