"""Draw the logo: the densities of an attack's scores in the world with z and in the world with z′.

logo.py writes logo.svg, logo-dark.svg and favicon.svg into book/_static.
"""

from __future__ import annotations

import math
from pathlib import Path

STATIC = Path(__file__).resolve().parent / "_static"
SIDE = 32
GROUND, HEIGHT = 28.5, 25.0
SPREAD = 4.1  # standard deviation of each density, in units of the drawing
CENTRES = {"z_prime": 10.9, "z": 21.1}
LIGHT = {"z_prime": "#d55e00", "z": "#0072b2"}
DARK = {"z_prime": "#e69f00", "z": "#56b4e9"}


def density(centre: float) -> str:
    """The outline of one density, closed along the ground."""
    places = [centre + SPREAD * i / 8 for i in range(-20, 21)]
    points = [(x, GROUND - HEIGHT * math.exp(-(((x - centre) / SPREAD) ** 2) / 2)) for x in places]
    curve = " ".join(f"L{x:.2f} {y:.2f}" for x, y in points)
    return f"M{points[0][0]:.2f} {GROUND}{curve}L{points[-1][0]:.2f} {GROUND}Z"


def svg(colours: dict[str, str], otherwise: dict[str, str] | None = None) -> str:
    """The logo in these colours, and in others where the reader's system is dark."""
    rules = [f".{world}{{fill:{colour}}}" for world, colour in colours.items()]
    if otherwise:
        dark = "".join(f".{world}{{fill:{colour}}}" for world, colour in otherwise.items())
        rules.append(f"@media (prefers-color-scheme: dark){{{dark}}}")
    curves = "".join(
        f'<path class="{world}" fill-opacity="{opacity}" d="{density(CENTRES[world])}"/>'
        for world, opacity in (("z_prime", 1), ("z", 0.82))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="dpsub">'
        f"<style>{''.join(rules)}</style>{curves}</svg>\n"
    )


def files() -> dict[str, str]:
    """What is kept in book/_static, by name."""
    return {"logo.svg": svg(LIGHT), "logo-dark.svg": svg(DARK), "favicon.svg": svg(LIGHT, DARK)}


if __name__ == "__main__":
    for name, text in files().items():
        (STATIC / name).write_text(text)
