"""Explorers without a kernel: pages of fields and sliders that compute in the reader's browser.

`page` composes DP-SGD for the reader's own parameters, `attacker_page` reads an (ε, δ), and `runs_page` plans audits.
"""

from __future__ import annotations

from dpsub import accounting
from dpsub._core import checks
from dpsub.figures import planning
from dpsub.figures.pages import Page, filled

__all__ = ["attacker_page", "numbers", "page", "runs_page"]

# Of the settings of the tests, how far the page's ε is from the accountant's at most, in percent.
CHECKED, WITHIN = 150, 0.6


def numbers(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> dict[str, float]:
    """The three ε that the widget shows: "add_remove", "substitute" and "group".

    The arguments are those of `accounting.epsilon`. "group" is `inf` if group privacy certifies no ε.
    """
    history = [(noise_multiplier, sample_rate, steps)]
    return {
        "add_remove": accounting.epsilon(history=history, delta=delta, adjacency="add_remove"),
        "substitute": accounting.epsilon(history=history, delta=delta, adjacency="substitute"),
        "group": accounting.group_privacy_epsilon(history=history, delta=delta),
    }


def page(*, noise_multiplier: float = 1.0, sample_rate: float = 0.01, steps: int = 1_000, delta: float = 1e-5) -> Page:
    """What an attacker finds, for the reader's own σ, q, T and δ: both ε, the trade-off curves and a sentence.

    A page of HTML that needs no kernel and loads nothing. The reader's browser composes DP-SGD with Poisson sampling.

    Args:
        noise_multiplier: 0.3 to 300; σ at the start.
        sample_rate: 1e-5 to 1; q at the start.
        steps: 1 to 100,000; T at the start.
        delta: 1e-10 to 0.01; δ at the start.

    Raises:
        ValueError: if a start is out of its range.

    Source: Doroshenko et al. (2022) on composing privacy losses; `accounting.epsilon` for the same numbers, certified.

    >>> "noise multiplier" in page(noise_multiplier=2.0).data
    True
    """
    starts = {
        "sigma": checks.real("noise_multiplier", noise_multiplier, at_least=0.3, at_most=300),
        "q": checks.real("sample_rate", sample_rate, at_least=1e-5, at_most=1),
        "steps": checks.whole("steps", steps, at_most=100_000),
        "delta": checks.real("delta", delta, at_least=1e-10, at_most=0.01),
    }
    return filled("explorer.html", starts=_shown(starts), checked=CHECKED, within=WITHIN)


def attacker_page(*, epsilon: float = 1.0, delta: float = 1e-5) -> Page:
    """What an attacker finds at a false-positive rate, for the reader's own ε and δ, under either adjacency.

    A page of HTML that needs no kernel and loads nothing. It shows the bound for any mechanism with this ε and δ, and
    that for a Gaussian mechanism.

    Args:
        epsilon: 0.01 to 100; ε at the start.
        delta: 1e-12 to 0.1; δ at the start.

    Raises:
        ValueError: if a start is out of its range.

    Source: Dong, Roth and Su (2022), Proposition 2.5 and Corollary 1.

    >>> "false alarms" in attacker_page(epsilon=3.0).data
    True
    """
    starts = {
        "epsilon": checks.real("epsilon", epsilon, at_least=0.01, at_most=100),
        "delta": checks.real("delta", delta, at_least=1e-12, at_most=0.1),
    }
    return filled("attacker.html", starts=_shown(starts))


def runs_page(*, epsilon: float = 10.0, delta: float = 1e-5, runs: int = 2_500) -> Page:
    """How many runs an audit needs, and what its runs can show, for the reader's own ε and δ.

    A page of HTML that needs no kernel and loads nothing. It shows the ceiling of a perfect attack and the bound of the
    rank test that an ideal attack on a Gaussian mechanism reaches in 80 % of audits, interpolated from `planning`'s
    stored numbers.

    Args:
        epsilon: 0.2 to 40; the attack's own ε at the start.
        delta: 1e-10 to 1e-3; δ at the start.
        runs: 50 to 500,000; the reader's runs at the start.

    Raises:
        ValueError: if a start is out of its range.

    Source: `estimators.max_certifiable_epsilon` and `estimators.runs_needed`.

    >>> "confidence" in runs_page(epsilon=4.0).data
    True
    """
    starts = {
        "epsilon": checks.real("epsilon", epsilon, at_least=0.2, at_most=40),
        "delta": checks.real("delta", delta, at_least=1e-10, at_most=1e-3),
        "runs": checks.whole("runs", runs, at_least=50, at_most=500_000),
    }
    return filled("runs.html", starts=_shown(starts), tables=planning.stored())


def _shown(starts: dict[str, float]) -> dict[str, str]:
    """The numbers as a reader would type them."""
    shown = {name: f"{value:.4g}" if value < 1_000 else f"{value:g}" for name, value in starts.items()}
    return {name: value.replace("e-0", "e-") for name, value in shown.items()}
