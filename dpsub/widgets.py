"""Thin explorers for notebooks with a running kernel."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from dpsub import accounting, explorer, figures


def epsilon_explorer(
    *, noise_multiplier: float = 12.0, sample_rate: float = 0.25, steps: int = 500, log10_delta: int = -5
) -> ipywidgets.VBox:
    """Sliders for σ, q, T and δ; the three ε and the trade-off curves, redrawn when a slider is let go.

    Without a kernel, on a page, `explorer.page` shows the same numbers.

    Args:
        noise_multiplier: where the slider for σ starts.
        sample_rate: where the slider for q starts.
        steps: where the slider for T starts.
        log10_delta: where the slider for δ starts, as a power of ten.
    """
    wide = {"continuous_update": False, "style": {"description_width": "9em"}, "layout": {"width": "28em"}}
    sliders = {
        "noise_multiplier": ipywidgets.FloatLogSlider(
            noise_multiplier, min=-0.3, max=2.3, description="noise multiplier σ", **wide
        ),
        "sample_rate": ipywidgets.FloatLogSlider(sample_rate, min=-3, max=0, description="sample rate q", **wide),
        "steps": ipywidgets.IntSlider(steps, min=1, max=5000, description="steps T", **wide),
        "log10_delta": ipywidgets.IntSlider(log10_delta, min=-9, max=-2, description="log₁₀ δ", **wide),
    }
    picture = ipywidgets.Output()

    def redraw(_: object = None) -> None:
        chosen = {name: slider.value for name, slider in sliders.items()}
        delta = 10.0 ** chosen.pop("log10_delta")
        chosen["sample_rate"] = min(chosen["sample_rate"], 1.0)
        values = explorer.numbers(**chosen, delta=delta)
        rates = np.linspace(0, 1, 101)
        curves = {name: accounting.tradeoff(rates, **chosen, adjacency=name) for name in ("add_remove", "substitute")}
        with picture:
            picture.clear_output(wait=True)
            fig, (bars, curve) = plt.subplots(1, 2, figsize=(7.6, 2.4), layout="constrained")
            figures.epsilon_bars(bars, values)
            figures.tradeoffs(curve, rates, curves)
            curve.legend()
            display(fig)  # type: ignore[no-untyped-call]
            plt.close(fig)

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), picture])
