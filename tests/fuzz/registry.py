"""All calls."""

from fuzz import (
    accounting_calls,
    audits_calls,
    distinguishers_calls,
    estimators_calls,
    models_calls,
    one_run_calls,
    opacus_calls,
    record_calls,
    trainers_calls,
)

ROOMS = (
    accounting_calls,
    estimators_calls,
    models_calls,
    audits_calls,
    distinguishers_calls,
    one_run_calls,
    opacus_calls,
    record_calls,
    trainers_calls,
)
CALLS = [call for room in ROOMS for call in room.CALLS]
prepare = audits_calls.prepare
