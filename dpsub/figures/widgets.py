"""The explorer and the audit game as widgets, for notebooks with a running kernel."""

from __future__ import annotations

import io
import itertools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from dpsub import accounting, figures
from dpsub._core import checks
from dpsub.figures import explorer, threshold_game

try:
    import ipywidgets
except ImportError:
    raise ImportError("dpsub.widgets needs ipywidgets: pip install 'dpsub[notebooks]'") from None


def epsilon_explorer(
    *, noise_multiplier: float = 12.0, sample_rate: float = 0.25, steps: int = 500, log10_delta: int = -5
) -> ipywidgets.VBox:
    """Sliders for σ, q, T and δ, and the three ε and the trade-off curves, redrawn when a slider is released.

    `explorer.page` shows the same quantities on a web page without a kernel.

    Args:
        noise_multiplier: where the slider for σ starts.
        sample_rate: where the slider for q starts.
        steps: where the slider for T starts.
        log10_delta: where the slider for δ starts, as a power of ten.

    Raises:
        ValueError: if a slider does not reach its start.
    """
    noise_multiplier = checks.real("noise_multiplier", noise_multiplier, at_least=10**-0.3, at_most=10**2.3)
    sample_rate = checks.real("sample_rate", sample_rate, at_least=1e-3, at_most=1)
    steps = checks.whole("steps", steps, at_most=5_000)
    if checks.real("log10_delta", log10_delta, at_least=-9, at_most=-2) != int(log10_delta):
        raise ValueError(f"log10_delta must be a whole number, got {log10_delta!r}")
    wide = {"continuous_update": False, "style": {"description_width": "9em"}, "layout": {"width": "28em"}}
    sliders = {
        "noise_multiplier": ipywidgets.FloatLogSlider(
            noise_multiplier, min=-0.3, max=2.3, description="noise multiplier σ", **wide
        ),
        "sample_rate": ipywidgets.FloatLogSlider(sample_rate, min=-3, max=0, description="sample rate q", **wide),
        "steps": ipywidgets.IntSlider(steps, min=1, max=5000, description="steps T", **wide),
        "log10_delta": ipywidgets.IntSlider(log10_delta, min=-9, max=-2, description="log₁₀ δ", **wide),
    }
    picture = ipywidgets.Image(format="png")

    def redraw(_: object = None) -> None:
        chosen = {name: slider.value for name, slider in sliders.items()}
        delta = 10.0 ** chosen.pop("log10_delta")
        chosen["sample_rate"] = min(chosen["sample_rate"], 1.0)
        values = explorer.numbers(**chosen, delta=delta)
        rates = np.linspace(0, 1, 101)
        curves = {name: accounting.tradeoff(rates, **chosen, adjacency=name) for name in ("add_remove", "substitute")}
        fig, (bars, curve) = plt.subplots(1, 2, figsize=(7.6, 2.4), layout="constrained")
        figures.epsilon_bars(bars, values)
        figures.tradeoffs(curve, rates, curves)
        curve.legend()
        picture.value = _png(fig)

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), picture])


def audit_game(
    *, runs: int = 1_250, mu: float = 1.0, delta: float = threshold_game.DELTA, seed: int | None = None
) -> ipywidgets.VBox:
    """Two worlds with a known true ε, a threshold to drag, and a button that counts bounds above the truth.

    `threshold_game.page` is the same game on a web page without a kernel.

    Args:
        runs: models in each world, one of `threshold_game.RUNS`.
        mu: the distance between the worlds, one of `threshold_game.MU`.
        delta: 1e-10 to 0.1; where the slider for δ starts.
        seed: of the first audit; by default the first one at which the best threshold's bound is above the truth.
    """
    for argument, value, options in (("runs", runs, threshold_game.RUNS), ("mu", mu, threshold_game.MU)):
        if checks.real(argument, value) not in options:
            raise ValueError(f"{argument} must be one of {', '.join(map(str, options))}, got {value!r}")
    delta = checks.real("delta", delta, at_least=1e-10, at_most=0.1)
    first = threshold_game.first_lie(runs=runs, mu=mu) if seed is None else checks.whole("seed", seed, at_least=0)
    wide = {"style": {"description_width": "9em"}, "layout": {"width": "28em"}}
    choices = {
        "runs": ipywidgets.Dropdown(options=threshold_game.RUNS, value=runs, description="runs in each world", **wide),
        "mu": ipywidgets.Dropdown(
            options=_truths(delta), value=mu, description="truth", **wide
        ),
    }  # fmt: skip
    slider = ipywidgets.FloatLogSlider(delta, min=-10, max=-1, description="δ", continuous_update=False, **wide)
    threshold = ipywidgets.FloatSlider(
        mu / 2, min=-4, max=6, step=0.05, description="your threshold", continuous_update=False, **wide
    )
    again, hundred = ipywidgets.Button(description="another audit"), ipywidgets.Button(description="play 100 times")
    picture, verdict = ipywidgets.Image(format="png"), ipywidgets.HTML()
    seeds = itertools.count(first)
    current: list[threshold_game.Round] = []

    def redraw(_: object = None) -> None:
        fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.4), layout="constrained")
        figures.game(left, right, current[0], threshold.value)
        picture.value = _png(fig)

    def deal(_: object = None) -> None:
        chosen = {name: choice.value for name, choice in choices.items()}
        current[:] = [threshold_game.play(**chosen, seed=next(seeds), delta=slider.value)]
        redraw()

    def restate(_: object) -> None:
        truth = choices["mu"]
        kept = truth.value
        truth.unobserve(deal, names="value")  # new labels are no new choice
        truth.options, truth.value = _truths(slider.value), kept
        truth.observe(deal, names="value")
        epsilon = accounting.gdp_epsilon(kept, slider.value)
        current[:] = [current[0]._replace(truth=epsilon, delta=slider.value)]
        redraw()

    def play_often(_: object = None) -> None:
        lies = threshold_game.count_lies(runs=choices["runs"].value, mu=choices["mu"].value, seed=next(seeds) + 1_000)
        verdict.value = (
            f"Of {lies.games} audits, the best threshold's bound was above the truth in {lies.best}, the rank test's "
            f"in {lies.ranks}; {threshold_game.ALPHA * lies.games:.0f} are allowed on average."
        )

    threshold.observe(redraw, names="value")
    slider.observe(restate, names="value")
    for choice in choices.values():
        choice.observe(deal, names="value")
    again.on_click(deal)
    hundred.on_click(play_often)
    deal()
    return ipywidgets.VBox([*choices.values(), slider, threshold, picture, ipywidgets.HBox([again, hundred]), verdict])


def _truths(delta: float) -> list[tuple[str, float]]:
    return [(f"ε = {accounting.gdp_epsilon(mu, delta):.2f}", mu) for mu in threshold_game.MU]


def _png(fig: Figure) -> bytes:
    """The figure as an image; closes it. An Output widget could make nbclient wait for ever (its issue 312)."""
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=110)
    plt.close(fig)
    return png.getvalue()
