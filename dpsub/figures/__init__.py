"""Figures of audits and of the accountants' ε, in one style.

Functions take an `ax`, draw on it and return the artists; `epsilon_panels` makes a figure of its own. The module
`findings` beside them makes tables of audits, and what figures draw.
"""

from dpsub.figures.epsilon_figures import (
    beside_claims,
    draw_ceiling,
    epsilon_against_delta,
    epsilon_against_step,
    epsilon_panels,
    note_ceiling,
)
from dpsub.figures.rate_figures import roc, tradeoffs
from dpsub.figures.style import (
    COLORS,
    DOUBLE,
    LOOKS,
    PALETTES,
    SINGLE,
    STYLE,
    labels,
    literal,
    looks,
    name_source,
    number,
    tag,
    use_style,
)

__all__ = [
    "COLORS",
    "DOUBLE",
    "LOOKS",
    "PALETTES",
    "SINGLE",
    "STYLE",
    "beside_claims",
    "draw_ceiling",
    "epsilon_against_delta",
    "epsilon_against_step",
    "epsilon_panels",
    "labels",
    "literal",
    "looks",
    "name_source",
    "note_ceiling",
    "number",
    "roc",
    "tag",
    "tradeoffs",
    "use_style",
]
