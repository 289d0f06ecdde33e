from dataclasses import replace

import pytest

from dpsub import audits, crafters
from dpsub.audits import plans


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


def test_canaries_can_be_crafted_anew_for_each_repeat(run, task, model, tmp_path, spec):
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
    few = plans.Cut(runs=700, repeats=2, block_size=128, most=2)
    shards = [few.shard(number) for number in range(few.shards)]
    assert [(one.repeat, one.start, one.stop) for one in shards] == [
        (0, 0, 384), (0, 384, 700), (1, 0, 384), (1, 384, 700),
    ]  # fmt: skip
    assert [list(one.blocks) for one in shards[:2]] == [[0, 1, 2], [3, 4, 5]]
    many = plans.Cut(runs=128 * 128 + 1, repeats=1, block_size=1)
    assert many.shards <= plans.SHARDS
    assert sum(one.stop - one.start for one in map(many.shard, range(many.shards))) == 128 * 128 + 1
