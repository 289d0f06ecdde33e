"""A plan is all that a kind of audit is: one that is made here is stored, killed, resumed and spread like any other."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr

from dpsub import audits, crafters
from dpsub._core.random_streams import stream
from dpsub.audits.execution import execute
from dpsub.audits.plans import SHARDS, Cut, Plan, Results, unfilled
from dpsub.estimators import epsilon_lower_bound


@dataclass(frozen=True, eq=False)
class NoisyCounts(Plan):
    """A fifth kind of audit: a count with or without one record, plus Gaussian noise."""

    call = "audit_counts"

    runs: int
    noise: float
    seed: int = 0

    @property
    def title(self):
        return f"counts with noise {self.noise:g}"

    @property
    def attributes(self):
        return {"runs": self.runs, "noise": self.noise, "seed": self.seed}

    @property
    def cut(self):
        return Cut(self.runs, block_size=50)

    def empty(self):
        sizes = {"run": self.runs}
        bit = unfilled("0: with the record, 1: without", sizes, "int8")
        return xr.Dataset({"score": unfilled("noisy count", sizes), "bit": bit})

    def run(self, shard, device, tick):
        rng = stream(self.seed, "audit", shard.number)
        bits = rng.integers(0, 2, shard.runs, dtype=np.int8)
        tick(shard.runs)
        return Results({"score": (rng.normal(0, self.noise, shard.runs) + (bits == 0)).astype(np.float32), "bit": bits})


def audit_counts(*, runs=1_000, noise=1.0, **options):
    return execute(NoisyCounts(runs, noise), **{"progress": False, "device": "cpu", **options})


class PlainNumbers(NoisyCounts):
    """The same in NumPy's own types, and with more than was asked for."""

    def run(self, shard, device, tick):
        arrays = super().run(shard, device, tick).arrays
        return Results({"bit": arrays["bit"].astype(int), "more": np.ones(3), "score": arrays["score"].astype(float)})


def test_what_is_stored_is_what_was_returned_whatever_types_an_audit_computes_in(store):
    returned = execute(PlainNumbers(100, 1.0), store=store, progress=False, device="cpu")
    assert returned.equals(audit_counts(runs=100))
    assert audits.load(store).identical(returned)


def test_a_fifth_kind_of_audit_is_stored_killed_and_resumed(store, killed_after):
    expected = audit_counts()
    assert 0 < epsilon_lower_bound(expected.score, expected.bit, delta=1e-5).epsilon < 4.38
    killed_after(lambda: audit_counts(store=store), 7)
    assert "counts with noise 1, 350 of 1,000 models, not complete" in str(audits.status(store))
    with pytest.raises(ValueError, match="with 350 of 1,000 models"):
        audits.load(store)
    found = audit_counts(store=store)
    assert found.equals(expected)
    assert audits.load(store).identical(found)
    with pytest.raises(ValueError, match="noise: stored 1.0, asked for 2.0"):
        audit_counts(store=store, noise=2.0)
    with pytest.raises(ValueError, match=r"stored by dpsub\.audit_counts, asked for by dpsub\.audit_training"):
        audits.audit_training(lambda bit, seed: 0.0, runs=2, adjacency="substitute", name="x", store=store)


def test_repeats_have_seeds_of_their_own(run, task, model, expected):
    several = run(store=None, repeats=3)
    seeds = audits.repeat_seeds(3, 3)
    assert several.score.dims == ("repeat", "run", "step")
    assert several.bit.dims == ("repeat", "run")
    assert several.attrs["seeds"] == seeds
    assert several.attrs["canary_crafted"] == "once"
    assert several.isel(repeat=0, drop=True).equals(expected)
    assert several.isel(repeat=2, drop=True).equals(run(store=None, seed=seeds[2]))
    assert len(set(seeds)) == 3
    assert audits.repeat_seeds(3, 5)[:3] == seeds


def test_canaries_can_be_crafted_anew_for_each_repeat(run, task, model, spec):
    spec = replace(spec, sample_rate=0.5)
    pairs = [crafters.gradient(task, model, spec, seed=seed) for seed in audits.repeat_seeds(3, 2)]
    found = run(spec=spec, canary=pairs, repeats=2)
    assert found.attrs["canary_crafted"] == "anew for each repeat"
    assert found.attrs["canary_parameter"] == [pair.details["parameter"] for pair in pairs]
    assert found.attrs["canary_fingerprint"] == [pair.fingerprint for pair in pairs]
    assert found.identical(run(spec=spec, canary=pairs, repeats=2))
    alone = run(store=None, spec=spec, canary=pairs[1], seed=audits.repeat_seeds(3, 2)[1])
    assert found.isel(repeat=1, drop=True).equals(alone)
    with pytest.raises(ValueError, match="canary must be one for all repeats, or one for each of the 3, got 2"):
        run(store=None, spec=spec, canary=pairs, repeats=3)
    with pytest.raises(ValueError, match="canary must be of one scenario and adjacency in all repeats"):
        run(store=None, spec=spec, canary=[pairs[0], pairs[1].against_nothing(adjacency="add_remove")], repeats=2)
    with pytest.raises(ValueError, match="store holds another audit"):
        run(spec=spec, canary=pairs[::-1], repeats=2)


def test_many_blocks_are_put_into_few_shards():
    few = Cut(runs=700, repeats=2, block_size=128, most=2)
    assert [(shard.repeat, shard.start, shard.stop) for shard in few.shards] == [
        (0, 0, 384), (0, 384, 700), (1, 0, 384), (1, 384, 700),
    ]  # fmt: skip
    assert [list(shard.blocks) for shard in few.shards[:2]] == [[0, 1, 2], [3, 4, 5]]
    many = Cut(runs=128 * 128 + 1)
    assert len(many.shards) <= SHARDS
    assert sum(shard.runs for shard in many.shards) == 128 * 128 + 1
