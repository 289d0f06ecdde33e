"""All calls."""

from fuzz import (
    accounting_calls,
    audits_calls,
    data_calls,
    distinguishers_calls,
    estimators_calls,
    figures_calls,
    findings_calls,
    models_calls,
    one_run_calls,
    opacus_calls,
    pictures_calls,
    trainers_calls,
)

ROOMS = (
    accounting_calls,
    estimators_calls,
    data_calls,
    models_calls,
    audits_calls,
    distinguishers_calls,
    one_run_calls,
    opacus_calls,
    figures_calls,
    findings_calls,
    pictures_calls,
    trainers_calls,
)
CALLS = [call for room in ROOMS for call in room.CALLS]
prepare = audits_calls.prepare
