"""The explorer and the audit game as widgets, for a running kernel."""

import io
import itertools

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np

from book.explorers import game
from dpsub import accounting, figures

WIDE = {"style": {"description_width": "9em"}, "layout": {"width": "28em"}}


def epsilon_explorer(*, noise_multiplier=12.0, sample_rate=0.25, steps=500, log10_delta=-5):
    """Sliders for σ, q, T and δ, and what follows from them.

    The three ε and the trade-off curves are redrawn when a slider is
    released. `explorers.training_page` shows the same quantities on a web
    page without a kernel.

    Args:
        noise_multiplier: where the slider for σ starts.
        sample_rate: where the slider for q starts.
        steps: where the slider for T starts.
        log10_delta: where the slider for δ starts, as a power of ten.
    """
    wide = {"continuous_update": False, **WIDE}
    sliders = {
        "noise_multiplier": ipywidgets.FloatLogSlider(
            noise_multiplier, min=-0.3, max=2.3, description="noise multiplier σ", **wide
        ),
        "sample_rate": ipywidgets.FloatLogSlider(sample_rate, min=-3, max=0, description="sample rate q", **wide),
        "steps": ipywidgets.IntSlider(steps, min=1, max=5000, description="steps T", **wide),
        "log10_delta": ipywidgets.IntSlider(log10_delta, min=-9, max=-2, description="log₁₀ δ", **wide),
    }
    picture = ipywidgets.Image(format="png")

    def redraw(_=None):
        law = {name: slider.value for name, slider in sliders.items()}
        delta = 10.0 ** law.pop("log10_delta")
        law["sample_rate"] = min(law["sample_rate"], 1.0)
        rates = np.linspace(0, 1, 101)
        curves = {name: accounting.tradeoff(rates, **law, adjacency=name) for name in ("add_remove", "substitute")}
        fig, (bars, curve) = two_panels()
        epsilon_bars(bars, three_epsilons(**law, delta=delta))
        figures.tradeoffs(curve, rates, curves)
        curve.legend()
        picture.value = png_of(fig)

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), picture])


def three_epsilons(*, delta, **law):
    """The three ε that the widget shows.

    "group" is infinite if group privacy certifies no ε.
    """
    return {
        "add_remove": accounting.epsilon(**law, delta=delta, adjacency="add_remove"),
        "substitute": accounting.epsilon(**law, delta=delta, adjacency="substitute"),
        "group": accounting.group_privacy_epsilon(**law, delta=delta),
    }


def epsilon_bars(ax, values):
    """One bar for each ε, labelled with its number.

    `values` go by the names in `figures.LOOKS`. An infinite ε has no bar.
    """
    shown = [value if np.isfinite(value) else 0.0 for value in values.values()]
    places = range(len(shown))
    looks = [figures.looks(name) for name in values]
    bars = ax.barh(places, shown, height=0.6, edgecolor="black", linewidth=0.8)
    for bar, name, look in zip(bars, values, looks, strict=True):
        bar.set_linestyle(look["linestyle"])
        grey = name == "add_remove"
        bar.set_facecolor(look["color"] if grey else "white")
    texts = [f"{value:.3f}" if np.isfinite(value) else "not certified" for value in values.values()]
    labels = ax.bar_label(bars, texts, padding=3)
    ax.set_yticks(places, [look["label"] for look in looks])
    ax.set_xlim(0, 1.2 * max(shown) or 1.0)
    ax.set_xlabel(r"$\varepsilon$")
    ax.invert_yaxis()
    return [*bars, *labels]


def audit_game(*, runs=1_250, mu=1.0, delta=game.DELTA, seed=None):
    """Two worlds with a known true ε, and a threshold to drag.

    A button counts bounds above the truth. `audit_game.page` is the same
    game on a web page without a kernel.

    Args:
        runs: models in each world, one of `audit_game.RUNS`.
        mu: the distance between the worlds, one of `audit_game.MUS`.
        delta: 1e-10 to 0.1; where the slider for δ starts.
        seed: of the first audit; by default the first one at which the best
            threshold's bound is above the truth.
    """
    first = seed
    if first is None:
        first = game.first_warning(runs=runs, mu=mu)
    choices = {
        "runs": ipywidgets.Dropdown(options=game.RUNS, value=runs, description="runs in each world", **WIDE),
        "mu": ipywidgets.Dropdown(options=truths(delta), value=mu, description="truth", **WIDE),
    }
    slider = ipywidgets.FloatLogSlider(delta, min=-10, max=-1, description="δ", continuous_update=False, **WIDE)
    threshold = ipywidgets.FloatSlider(
        mu / 2, min=-4, max=6, step=0.05, description="your threshold", continuous_update=False, **WIDE
    )
    again = ipywidgets.Button(description="another audit")
    hundred = ipywidgets.Button(description="play 100 times")
    picture = ipywidgets.Image(format="png")
    verdict = ipywidgets.HTML()
    seeds, current = itertools.count(first), []

    def redraw(_=None):
        fig, (left, right) = two_panels()
        game.draw(left, right, current[0], threshold.value)
        picture.value = png_of(fig)

    def deal(_=None):
        chosen = {name: choice.value for name, choice in choices.items()}
        chosen |= {"seed": next(seeds), "delta": slider.value}
        current[:] = [game.play(**chosen)]
        redraw()

    def restate(_):
        truth = choices["mu"]
        kept = truth.value
        truth.unobserve(deal, names="value")  # new labels are no new choice
        truth.options, truth.value = truths(slider.value), kept
        truth.observe(deal, names="value")
        epsilon = accounting.gdp_epsilon(kept, slider.value)
        audit = current[0]._replace(truth=epsilon, delta=slider.value)
        current[:] = [audit]
        redraw()

    def play_often(_):
        wrong = game.count_too_high(runs=choices["runs"].value, mu=choices["mu"].value, seed=next(seeds) + 1_000)
        verdict.value = (
            "Of 100 audits, the best threshold's bound was above the truth "
            f"in {wrong['best']}, the rank test's in {wrong['ranks']}; "
            f"{game.ALPHA * 100:.0f} are allowed on average."
        )

    threshold.observe(redraw, names="value")
    slider.observe(restate, names="value")
    for choice in choices.values():
        choice.observe(deal, names="value")
    again.on_click(deal)
    hundred.on_click(play_often)
    deal()
    buttons = ipywidgets.HBox([again, hundred])
    parts = [*choices.values(), slider, threshold, picture, buttons, verdict]
    return ipywidgets.VBox(parts)


def truths(delta):
    """The choices of a truth, each with its ε at δ."""
    return [(f"ε = {accounting.gdp_epsilon(mu, delta):.2f}", mu) for mu in game.MUS]


def two_panels():
    return plt.subplots(1, 2, figsize=(7.6, 2.4), layout="constrained")


def png_of(fig):
    """The figure as an image; closes it.

    An Output widget could make nbclient wait for ever (its issue 312).
    """
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=110)
    plt.close(fig)
    return png.getvalue()
