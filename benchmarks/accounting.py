"""One substitute ε, and twenty step counts: dpsub against prv-accountant, Opacus's PRV and dp-accounting.

Every row answers the same question to the same certified error where the peer can certify one; the last column is the
peer's time over that of dpsub's own grid, in the same run.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version

from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as plds
from opacus.accountants import PRVAccountant as OpacusPRV
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from dpsub import accounting

DELTA, EPS_ERROR = 1e-5, 1e-3
STEPS = list(range(25, 501, 25))
Setting = tuple[float, float]


def dpsub(setting: Setting, steps: list[int], adjacency: str, engine: str = "auto") -> float:
    sigma, q = setting
    asked = {"noise_multiplier": sigma, "sample_rate": q, "delta": DELTA, "adjacency": adjacency}
    # Its error is relative where ε is above 1, and the peers' is absolute: a rough answer tells what to ask for.
    largest = accounting.epsilon(**asked, steps=steps[-1], eps_error=0.1)
    relative = EPS_ERROR if engine == "prv" else EPS_ERROR / max(1.0, largest)
    return accounting.epsilon(**asked, steps=steps, engine=engine, eps_error=relative)[-1]


def prv_accountant(setting: Setting, steps: list[int]) -> float:
    """Its own variable: one of the two directions of add/remove."""
    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=setting[0], sampling_probability=setting[1])
    accountant = PRVAccountant(
        prvs=[mechanism], max_self_compositions=[steps[-1]], eps_error=EPS_ERROR, delta_error=DELTA / 1000
    )
    return [accountant.compute_epsilon(DELTA, [count])[2] for count in steps][-1]


def opacus(setting: Setting, steps: list[int]) -> float:
    """The same direction, with the same error; it has one number of steps at a time."""
    accountant = OpacusPRV()
    for count in steps:
        accountant.history = [(*setting, count)]
        answer = accountant.get_epsilon(DELTA, eps_error=EPS_ERROR)
    return float(answer)


def dp_accounting(setting: Setting, steps: list[int], adjacency: str, mesh: float) -> float:
    """Its pessimistic estimate, which at T steps is up to 0.5 · T · mesh² too large; it states no error itself."""
    relation = privacy_accountant.NeighboringRelation
    step = plds.from_gaussian_mechanism(
        setting[0],
        sampling_prob=setting[1],
        value_discretization_interval=mesh,
        neighboring_relation=relation.REPLACE_ONE if adjacency == "substitute" else relation.ADD_OR_REMOVE_ONE,
    )
    return [step.self_compose(count).get_epsilon_for_delta(DELTA) for count in steps][-1]


def measured(connection, task: Callable[..., float], arguments: tuple) -> None:
    warnings.filterwarnings("ignore")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    try:
        answer = task(*arguments)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"[:60]
    seconds = time.perf_counter() - start
    connection.send((answer, seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10))


def alone(task: Callable[..., float], *arguments: object) -> tuple[float | str, float, float]:
    """Answer, seconds and additional MiB, in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=measured, args=(there, task, arguments))
    process.start()
    result = here.recv()
    process.join()
    return result


def compare(title: str, setting: Setting, steps: list[int]) -> None:
    print(f"\n{title}: σ = {setting[0]:.6g}, q = {setting[1]}, T = {steps[-1]}, δ = {DELTA}, error {EPS_ERROR}")
    mesh = math.sqrt(2 * EPS_ERROR / steps[-1])  # for which its pessimistic estimate is within the error
    rows = [
        ("dpsub, substitute", dpsub, (setting, steps, "substitute")),
        ("prv-accountant by dpsub's engine, substitute", dpsub, (setting, steps, "substitute", "prv")),
        (f"dp-accounting, mesh {mesh:.1e}, substitute", dp_accounting, (setting, steps, "substitute", mesh)),
        ("dpsub, add/remove", dpsub, (setting, steps, "add_remove")),
        ("prv-accountant, one direction of add/remove", prv_accountant, (setting, steps)),
        ("Opacus's PRV, one direction of add/remove", opacus, (setting, steps)),
        (f"dp-accounting, mesh {mesh:.1e}, add/remove", dp_accounting, (setting, steps, "add_remove", mesh)),
    ]
    own = math.nan
    for name, task, arguments in rows:
        answer, seconds, memory = alone(task, *arguments)
        if name.startswith("dpsub"):
            own = seconds
        shown = answer if isinstance(answer, str) else f"ε = {answer:9.5f}"
        print(f"  {name:46} {shown}  {seconds:8.3f} s  {memory:7.0f} MiB  {seconds / own:7.1f}")


if __name__ == "__main__":
    print(", ".join(f"{name} {version(name)}" for name in ("dpsub", "prv-accountant", "opacus", "dp-accounting")))
    dpsub((1.0, 0.5), [10], "substitute")  # what is imported and planned on first use
    dp_accounting((1.0, 0.5), [10], "substitute", 1e-3)
    compare("One ε", (12.1148681640625, 0.25), [500])
    compare("One ε, little noise", (1.0, 0.2), [500])
    compare("Twenty step counts", (12.1148681640625, 0.25), STEPS)
