"""Audits of distributed optimizers: two processes must be audited as one that has the records of both."""

import multiprocessing
import warnings
from datetime import timedelta

import pytest
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import (
    DistributedDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import distributed

from dpsub.opacus import audit_optimizer, audited_steps

CLAIM = {"delta": 1e-5, "adjacency": "substitute", "sample_rate": 0.1}
SAME = [  # in one process, in two, and what is asked of the audit
    (DPOptimizer, DistributedDPOptimizer, {}),
    (DPOptimizer, DistributedDPOptimizer, {"canaries": 3, "adjacency": "zero_out"}),
    (DPOptimizer, DistributedDPOptimizer, {"canary": "random", "anew": True}),
    (DPPerLayerOptimizer, SimpleDistributedPerLayerOptimizer, {}),
    (DPOptimizerFastGradientClipping, DistributedDPOptimizerFastGradientClipping, {"canary": "constant"}),
]


class NoClippingInTheSecond(DistributedDPOptimizer):
    def clip_and_accumulate(self):
        if self.rank == 0:
            return super().clip_and_accumulate()
        for parameter in self.params:
            before = 0 if parameter.summed_grad is None else parameter.summed_grad
            parameter.summed_grad = before + parameter.grad_sample.sum(dim=0)


class NoNoise(DistributedDPOptimizer):
    def add_noise(self):
        for parameter in self.params:
            parameter.grad = parameter.summed_grad.view_as(parameter)


def train(kind, steps, share=slice(None), state=None, seed=1, **asked):
    """Steps on eight records, of which a process has a share, in two physical batches: parameters, auditor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    criterion, ghost = torch.nn.CrossEntropyLoss(), issubclass(kind, DPOptimizerFastGradientClipping)
    if ghost:
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    else:
        model = GradSampleModule(model)
    optimizer = kind(
        torch.optim.SGD(model.parameters(), 0.1), noise_multiplier=1.0, expected_batch_size=len(range(8)[share]),
        max_grad_norm=[0.5] * 4 if issubclass(kind, DPPerLayerOptimizer) else 1.0,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    loss = DPLossFastGradientClipping(model, optimizer, criterion, "mean") if ghost else criterion
    auditor = audit_optimizer(optimizer, **CLAIM | asked)
    if state is not None:
        auditor.load_state_dict(state)
    data = torch.Generator().manual_seed(2)
    for batch in range(2 * steps):
        x, y = torch.randn(8, 6, generator=data), torch.randint(3, (8,), generator=data)
        optimizer.signal_skip_step(batch % 2 == 0)
        optimizer.zero_grad()
        loss(model(x[share]), y[share]).backward()
        optimizer.step()
        if auditor.refuted:
            break
    return torch.cat([one.detach().flatten() for one in model.parameters()]), auditor


def refusal(rank, audits, **asked):
    try:
        return train(DistributedDPOptimizer, 1, **asked) if audits else None
    except (ValueError, RuntimeError) as error:
        return str(error)


def process(rank, path, found):
    """All that two processes are asked for: what they find, as numbers and words."""
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    audited_steps.PATIENCE = timedelta(seconds=60)
    share, results = slice(rank, None, 2), {}
    for number, (_, kind, asked) in enumerate(SAME):
        parameters, auditor = train(kind, 20, share, **asked)
        results[number] = parameters.tolist(), auditor.observations().to_dict(), str(auditor.report())
    for kind in (NoNoise, NoClippingInTheSecond):
        results[kind.__name__] = train(kind, 300, share)[1].refuted_at
    first = train(DistributedDPOptimizer, 10, share)[1]
    results["resumed"] = train(DistributedDPOptimizer, 10, share, first.state_dict())[1].report().fault
    results["seeds"] = refusal(rank, True, seed=1, canary="dirac", delta=1e-5 if rank else 1e-6)
    audited_steps.PATIENCE = timedelta(seconds=2)
    results["alone"] = refusal(rank, rank == 0)
    found.put((rank, results))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    spawned = multiprocessing.get_context("spawn")
    queue, path = spawned.Queue(), tmp_path_factory.mktemp("processes") / "store"
    processes = [spawned.Process(target=process, args=(rank, path, queue)) for rank in range(2)]
    for one in processes:
        one.start()
    results = dict(queue.get(timeout=300) for _ in processes)
    for one in processes:
        one.join()
    return results[0], results[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
@pytest.mark.parametrize("number", range(len(SAME)))
def test_two_processes_are_audited_as_one_with_the_records_of_both(found, number):
    kind, _, asked = SAME[number]
    parameters, auditor = train(kind, 20, **asked)
    first, second = (one[number] for one in found)
    assert first == second
    alone = auditor.observations()
    torch.testing.assert_close(torch.tensor(first[0]), parameters, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torch.tensor(first[1]["data_vars"]["score"]["data"]), torch.tensor(alone.score.values), atol=1e-4, rtol=1e-4
    )
    assert first[1]["data_vars"]["bit"]["data"] == alone.bit.values.tolist()
    assert auditor._noise is None or auditor.report().clipping is None


@pytest.mark.slow
def test_faults_of_one_process_are_found_in_both(found):
    first, second = found
    assert first["NoNoise"] == second["NoNoise"] == 1
    assert first["NoClippingInTheSecond"] == second["NoClippingInTheSecond"]
    assert first["NoClippingInTheSecond"] is not None
    assert first["resumed"] == second["resumed"] == "the noise of step 11 repeats that of step 1"


@pytest.mark.slow
def test_processes_that_do_not_audit_alike_are_told_so(found):
    first, second = found
    assert "audit_optimizer must be given the same in all processes, got (Options(delta=1e-06" in first["seeds"]
    assert "must be given the same" in second["seeds"]
    assert first["alone"] == "audit_optimizer must be called in all 2 processes, got no answer of some in 0:00:02"
