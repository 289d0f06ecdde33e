"""Figures of audits and of the accountants' ε.

Functions take an `ax`, draw on it and return the artists; `epsilon_panels` makes a figure of its own. Modules beside
them: `findings` (tables of audits) and `pictures` (crafting).
"""

from dpsub.figures.epsilon_figures import (
    against_noise,
    against_runs,
    beside_claims,
    epsilon_against_step,
    epsilon_panels,
    tradeoffs,
    worst_case,
)
from dpsub.figures.style import (
    COLORS,
    DOUBLE,
    LOOKS,
    PALETTES,
    SINGLE,
    STYLE,
    looks,
    name_source,
    number,
    tag,
    use_style,
    what_it_rests_on,
)

__all__ = [
    "COLORS",
    "DOUBLE",
    "LOOKS",
    "PALETTES",
    "SINGLE",
    "STYLE",
    "against_noise",
    "against_runs",
    "beside_claims",
    "epsilon_against_step",
    "epsilon_panels",
    "looks",
    "name_source",
    "number",
    "tag",
    "tradeoffs",
    "use_style",
    "what_it_rests_on",
    "worst_case",
]
