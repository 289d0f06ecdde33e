"""Calls of dpsub.opacus."""

import warnings

import numpy as np
import torch
from hypothesis import strategies as st
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpsub.opacus import PrivacyStatement, Report, SubstitutePRVAccountant, audit_optimizer, privacy_statement
from fuzz.accounting_calls import DELTAS, HISTORIES
from fuzz.call import OMIT, Call
from fuzz.checkers import anything
from fuzz.hostile import ANYTHING, LITTLE, among

DATA = TensorDataset(torch.zeros(8, 2))
POISSON, SHUFFLED = DPDataLoader(DATA, sample_rate=0.5), DataLoader(DATA, batch_size=4, shuffle=True)
REPEATING = DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * 8, 8))
LOADERS = [POISSON, SHUFFLED, REPEATING, [POISSON, POISSON], [POISSON, SHUFFLED], DataLoader(DATA, batch_size=None)]
LOADERS += [DataLoader(DATA, batch_size=3), []]


def accountant(kind=SubstitutePRVAccountant, history=((1.0, 1.0, 2),), **options):
    made = kind(**options)
    made.history = list(history)
    return made


def engine(**options):
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # Opacus advises a secure source of noise
        made = PrivacyEngine()
    made.accountant = accountant(**options)
    return made


SPOILED_HISTORIES = [
    [], None, [(0, 1.0, 1)], [(1.0, 0, 1)], [(1.0, 2.0, 1)], [(1.0, 1.0, 0)], [(1.0, 1.0)], [("a", "b", "c")], "abc",
    [(np.nan, 1.0, 1)], [(1.0, 1.0, 10**400)], [(10**400, 1.0, 1)], {"a": 1}, [None], [{0: 1.0, 1: 1.0, 2: 1}],
    [(1e-30, 1.0, 1)], [(1.0, 1.0, 1.5)],
]  # fmt: skip
STEPPED = [[(1.0, 0.5, 2)], [(2.0, 0.5, 1)]]


def statement(result, /, **_):
    assert isinstance(result, PrivacyStatement)
    for epsilon in (result.zero_out, result.substitute):
        assert 0 <= epsilon < np.inf
    assert result.add_remove in (None, result.zero_out)
    assert result.substitute >= result.zero_out * (1 - 1e-9) - 1e-9
    if result.group_privacy is not None:
        assert result.group_privacy >= result.substitute * 0.998 - 2e-3
    assert 0 <= result.found_members <= 1
    assert 0 <= result.found_contents <= 1
    assert result.risk.prior[0] <= result.risk.posterior <= 1
    assert f"{result.delta:g}" in str(result)
    assert result._repr_markdown_()


def spent(result, /, **_):
    assert type(result) is float
    assert result >= 0


def loaded(state_dict):
    made = SubstitutePRVAccountant()
    made.load_state_dict(state_dict)
    return made


def epsilon_of(history, sampling="poisson", **arguments):
    return (
        accountant(history=history, sampling=sampling).get_epsilon(**arguments)
        if isinstance(history, list)
        else (accountant(sampling=sampling).get_epsilon(**arguments))
    )


def audited(optimizer, **arguments):
    """Three steps of an optimizer of noise 1 under audit, and the report on them."""
    if isinstance(optimizer, str) and optimizer == "private":
        weights = torch.nn.Parameter(torch.zeros(5))
        optimizer = DPOptimizer(
            torch.optim.SGD([weights], 0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
    auditor = audit_optimizer(optimizer, **arguments)
    for _ in range(3):
        weights.grad_sample = torch.ones(4, 5)
        optimizer.step()
        optimizer.zero_grad()
    return auditor.report()


def reported(result, /, **_):
    assert isinstance(result, Report)
    if result.claimed is not None:
        assert 0 <= result.epsilon <= result.claimed * (1 + 1e-3) + 1e-3
    assert result.observations == 3
    assert not result.refuted or result.noise_multiplier > 1  # more than the optimizer adds
    assert str(result)


SAMPLING = ["poisson", "epochs", "without_replacement"]
STATE = accountant().state_dict()
ANY_STATE = st.one_of(
    LITTLE, st.builds(lambda name, value: {**STATE, name: value}, among([*STATE, "more", 1]), ANYTHING),
    among(SPOILED_HISTORIES).map(lambda history: {**STATE, "history": history}),
    among(list(STATE)).map(lambda name: {key: value for key, value in STATE.items() if key != name}),
    among([accountant(PRVAccountant).state_dict(), accountant(RDPAccountant).state_dict(), {}]),
)  # fmt: skip
ANY_HISTORY = st.one_of(
    LITTLE, among(SPOILED_HISTORIES), among(SPOILED_HISTORIES).map(lambda history: accountant(history=history or ())),
)  # fmt: skip

CALLS = [
    Call(
        "dpsub.opacus.privacy_statement",
        privacy_statement,
        {
            "engine_or_history": [
                *HISTORIES[:2],
                accountant(),
                accountant(RDPAccountant),
                engine(),
                accountant(sampling="epochs"),
            ],
            "delta": DELTAS,
            "prior": [OMIT, 0.5, 0.1, np.float32(0.9), 1e-9],
            "data_loader": [OMIT, None],
            "sampling": [OMIT, None, *SAMPLING],
        },
        statement,
        hostile={"engine_or_history": ANY_HISTORY, "data_loader": st.one_of(LITTLE, among(LOADERS))},
    ),
    Call(
        "dpsub.opacus.privacy_statement of a loader",
        privacy_statement,
        {"engine_or_history": STEPPED, "delta": [1e-5, 1e-3], "data_loader": [SHUFFLED, SHUFFLED, SHUFFLED, POISSON]},
        statement,
        hostile={"data_loader": st.one_of(LITTLE, among(LOADERS)), "engine_or_history": ANY_HISTORY},
    ),
    Call("dpsub.opacus.SubstitutePRVAccountant", SubstitutePRVAccountant, {"sampling": [OMIT, *SAMPLING]}, anything),
    Call(
        "dpsub.opacus.SubstitutePRVAccountant.get_epsilon",
        epsilon_of,
        {
            "history": [list(one) for one in HISTORIES[:2]],
            "sampling": [OMIT, *SAMPLING],
            "delta": DELTAS,
            "eps_error": [OMIT, 1e-3, 0.5],
            "alphas": [OMIT, OMIT, [2, 3]],
        },
        spent,
        hostile={"history": among(SPOILED_HISTORIES)},
    ),
    Call(
        "dpsub.opacus.SubstitutePRVAccountant.check_sampling",
        SubstitutePRVAccountant().check_sampling,
        {"sampling": SAMPLING},
        anything,
    ),
    Call(
        "dpsub.opacus.SubstitutePRVAccountant.load_state_dict",
        loaded,
        {"state_dict": [STATE, {**STATE, "sampling": "epochs"}, {**STATE, "history": []}]},
        anything,
        hostile={"state_dict": ANY_STATE},
    ),
    Call(
        "dpsub.opacus.SubstitutePRVAccountant.state_dict",
        lambda **arguments: accountant().state_dict(**arguments),
        {"destination": [OMIT, None, {}]},
        anything,
    ),
    Call(
        "dpsub.opacus.audit_optimizer",
        audited,
        {
            "optimizer": ["private"],
            "delta": DELTAS,
            "adjacency": ["substitute", "add_remove", "zero_out"],
            "canary": [OMIT, "dirac", "diracs", "constant", "random", [torch.ones(5)]],
            "canary_rate": [OMIT, 1.0, 1],
            "canary_norm": [OMIT, 0.5, 100.0],
            "canaries": [OMIT, 1],
            "alpha": [OMIT, 0.05, 0.2],
            "sample_rate": [0.1, 1.0],
            "noise_multiplier": [OMIT, None, 0.5, 2.0],
            "anew": [OMIT, False],
            "test_noise": [OMIT, False],
            "seed": [OMIT, 0, 7],
            "callback": [OMIT, None, str],
        },
        reported,
        hostile={"callback": LITTLE},
    ),
]
