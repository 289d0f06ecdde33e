"""The figures of the papers: functions that take an `ax`, draw on it, and return what they drew."""

from dpsub.figures.audited import against_runs, epsilon_against_step, epsilon_panels, worst_case
from dpsub.figures.judged import game, validity
from dpsub.figures.looks import (
    COLORS,
    DOUBLE,
    LOOKS,
    SINGLE,
    STYLE,
    looks,
    name_source,
    tag,
    use_style,
    what_it_rests_on,
)
from dpsub.figures.promised import against_noise, epsilon_bars, tradeoffs

__all__ = [
    "COLORS",
    "DOUBLE",
    "LOOKS",
    "SINGLE",
    "STYLE",
    "against_noise",
    "against_runs",
    "epsilon_against_step",
    "epsilon_bars",
    "epsilon_panels",
    "game",
    "looks",
    "name_source",
    "tag",
    "tradeoffs",
    "use_style",
    "validity",
    "what_it_rests_on",
    "worst_case",
]
