"""The audit of an Opacus optimizer: checks of what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from opacus.optimizers import DPOptimizer

from dpsub._core import checks
from dpsub.opacus.audited_steps import Asked, audited_optimizer
from dpsub.opacus.auditors import Auditor
from dpsub.opacus.canary_gradients import KINDS, Tensor, own_gradients


@checks.checked(
    "delta",
    "adjacency",
    "alpha",
    "sample_rate",
    "noise_multiplier",
    "seed",
    canary_rate=partial(checks.real, above=0, at_most=1),
    canary_norm=partial(checks.real, above=0),
    canaries=checks.whole,
    anew=checks.flag,
    test_noise=checks.flag,
)
def audit_optimizer(
    optimizer: DPOptimizer,
    *,
    delta: float,
    adjacency: str,
    canary: str | Sequence[Tensor] | Mapping[Tensor, Tensor] = "dirac",
    canary_rate: float = 1.0,
    canary_norm: float = 10.0,
    canaries: int = 1,
    alpha: float = 0.05,
    sample_rate: float | None = None,
    noise_multiplier: float | None = None,
    anew: bool = False,
    test_noise: bool = True,
    seed: int = 0,
    callback: Callable[[Auditor], Any] | None = None,
) -> Auditor:
    r"""Test an implementation of DP-SGD while it trains: a canary in each step, and what it leaves in the noisy sum.

    At each step of the optimizer a fair coin decides between two worlds. The canary is a gradient g that enters as one
    more record's, before clipping. Under substitution z is g and z′ is −g; otherwise z is g and z′ is nothing. Correct
    DP-SGD clips g to max_grad_norm C. The auditor clips and sums the records' gradients as well, and subtracts their
    sum from the privatised one: ε is about an adversary who knows all other records. The observation is what is left in
    the direction of the clipped canary, in units of C: N(±1, σ²), or N(1, σ²) against N(0, σ²).

    Bets against the claim decide whether it is refuted. They hold though later steps depend on earlier ones, and at any
    moment: a correct optimizer is ever refuted with probability at most alpha. The report's bound on a step comes from
    bets of the same kind on a family of claims, this one among them; the verdict is that of `refuted`.

    What is left besides the canary is the noise in all coordinates. Other bets, with half of alpha, are that it is less
    than claimed, everywhere or in one parameter, or that it repeats earlier noise or another parameter's. They take a
    few steps where a canary takes hundreds, and the report names what they found. They take no other way to clip for a
    fault, since it may be private, too: that the sums are not those of clipped gradients is a message and no verdict.

    What is audited are clipping, accumulation, noise and scaling. How batches are sampled is not seen: the canary's own
    coin decides whether it is in. It enters the first of the batches that `BatchMemoryManager` makes of one. If
    max_grad_norm shrinks between them, the noise covers less than what earlier records were clipped to: a fault.

    After it has been observed, the canary is taken out of the gradients again, as correct clipping leaves it. So a
    correct optimizer takes the steps that it would have taken without an audit, up to rounding: a canary must go
    through the optimizer's own sum, where faults are, and to subtract it again rounds once more. With a Dirac this is
    one coordinate. Only the bound of adaptive clipping remembers that there was one more record.

    Args:
        optimizer: Opacus's `DPOptimizer`, as `make_private` returns it, or a subclass of it: with flat, per-layer or
            adaptive clipping. With ghost clipping (`DPOptimizerFastGradientClipping`) there are no per-sample
            gradients: the canary enters after clipping, which is then not audited, the records stay in the sum, and the
            noise is not tested. Distributed ones are refused.
        delta: 0 < δ < 1; the δ at which ε are stated.
        adjacency: "substitute", "add_remove" (the canary's row is there or not) or "zero_out" (z′ is a row of zeros).
        canary: "dirac" (one coordinate, among the hundredth that the first batch moves least; with clipping by layer
            one of each parameter), "diracs" (one of each parameter), "constant", "random" (a Gaussian direction), or
            gradients of your own: a tensor for each of `optimizer.params`, or a mapping from parameters to tensors.
            Only their direction counts.
        canary_rate: in (0, 1]; the probability with which the canary is in a step at all. Below 1 the claim of a step
            is that of the subsampled Gaussian mechanism.
        canary_norm: > 0; the norm of the canary before clipping, in units of C.
        canaries: ≥ 1; so many in each step, each a row and a coordinate of its own, with a coin of its own. More than
            one must be "dirac", without clipping by layer. Ten show more in a hundred steps than one in four
            hundred; a hundred show little more than ten. The bets on a step are one bet, their mean. It holds however
            they depend on each other: the claim is that a step is private for each record, given all others.
        alpha: the probability with which a correct optimizer may be refuted, 1e-12 < alpha < 0.5.
        sample_rate: of a batch, for the ε of the training; accumulated batches add up. None: that of the attached
            accountant. If there is none, the report is of steps alone.
        noise_multiplier: what is claimed of each step, as the documentation says. None: what
            `optimizer.noise_multiplier` is when a step adds its noise.
        anew: draw the canary anew for each step.
        test_noise: bet on the noise as well, with half of alpha.
        seed: ≥ 0; of the coins and of the canary. The training's own randomness is not touched.
        callback: called with the auditor after each step, when the parameters have been updated. What it raises comes
            out of `optimizer.step()` and so ends the training.

    Returns:
        An `Auditor`: `report()`, `observations()`, `remove()`, and `refuted`, which a training loop may ask.

    Raises:
        ValueError: if an argument is out of range, if the optimizer is none of these or is being audited already, or
            if the claim is a noise multiplier of 0, whose ε is infinite. Later, from `optimizer.step()`: if there are
            no per-sample gradients, the parameters are others than before, or the gradients are not finite.
        RuntimeError: from `optimizer.step()`, if it returns without a step of `original_optimizer`.

    Source: *Tight Auditing*, Algorithm 2 and section 6.3.

    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(1_000))
    >>> optimizer = DPOptimizer(
    ...     torch.optim.SGD([weights], lr=0.1), noise_multiplier=0.5, max_grad_norm=1.0, expected_batch_size=8,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
    >>> auditor = audit_optimizer(
    ...     optimizer, delta=1e-5, adjacency="substitute", sample_rate=0.1, noise_multiplier=1.0
    ... )
    >>> while not auditor.refuted:
    ...     weights.grad_sample = torch.ones(8, 1_000)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> report = auditor.report()
    >>> report.refuted, report.refuted_at == auditor.steps
    (True, True)
    >>> auditor.remove()
    """
    audited = audited_optimizer(optimizer, noise_multiplier)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be a function that takes the auditor, got {callback!r}")
    kind = canary if isinstance(canary, str) and canary in KINDS else own_gradients(canary, audited.parameters)
    if anew and not isinstance(kind, str):
        raise ValueError(f"anew must be False for a canary of your own, which is not drawn, got {anew}")
    if canaries > 1 and (kind != "dirac" or audited.bounds is not None):
        clipped = "" if audited.bounds is None else " with clipping by layer"
        raise ValueError(f"canaries must be 1 for any canary but 'dirac' with flat clipping, got {canaries}{clipped}")
    if canaries > (size := sum(one.numel() for one in audited.parameters)):
        raise ValueError(f"canaries must be at most {size}, one for each coordinate, got {canaries}")
    asked = Asked(
        delta,
        adjacency,
        alpha,
        canary_rate,
        canary_norm,
        canaries,
        sample_rate,
        noise_multiplier,
        anew,
        test_noise,
        seed,
        callback,
    )
    return Auditor(audited, kind, asked)
