from itertools import combinations

from dpsub._core.random_streams import torch_seed


def test_blocks_of_an_audit_never_share_a_seed():
    seeds = [torch_seed(3, "audit", block) for block in range(30_000)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**32
    of_seeds = [torch_seed(seed, "audit") for seed in range(60)]
    assert all(one != other for one, other in combinations(of_seeds, 2))
    assert torch_seed(3, "audit") != torch_seed(3, "crafter")
