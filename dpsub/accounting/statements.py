"""What a training protects, in numbers, in words, and for a file."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpsub._core.provenance import versions
from dpsub.accounting import epsilon_delta
from dpsub.accounting.group_privacy import group_privacy_epsilon
from dpsub.accounting.risks import LEAST_DELTA, Prior, Risk, risk
from dpsub.accounting.samplings import Phase, Poisson, Sampling, TruncatedPoisson

REASONS = {  # why Opacus's accountants report another ε of membership
    "rdp": "a looser bound for the same adjacency, from Rényi divergences",
    "prv": "the same but for numerical errors",
    "gdp": "an approximation that can be too small, and no bound",
}
SURE = 1 - 1e-9  # from this probability on the text says that a belief has no limit
ADJACENCY_IN_WORDS = {"substitute": "substitute", "add_remove": "add/remove", "zero_out": "zero-out"}
LEVELS = 100  # values of ε at which a bound for random trials is tried
CONTENTS = "the contents of a record known to be in the training data"
PHASE = ("noise_multiplier", "sample_rate", "steps")
FALSE_ALARMS = 0.01  # the false-positive rate at which a statement says what an attack can find


@dataclass(frozen=True)
class PrivacyStatement:
    """What a training protects: as numbers, and as a text by `str`.

    Attributes:
        add_remove: ε under add/remove adjacency, which protects membership, if the number of records is public or if
            neither the sample rate nor the expected batch size follows from it. None unless sampling is Poisson's, cut
            or not: with other batches it does not exist, since a removed record would change those of the others.
        zero_out: ε under zero-out adjacency: a record is replaced by nothing, and the others stay in their batches. It
            equals `add_remove` for Poisson sampling, and is at most `substitute` for batches of fixed size, where no
            other is known.
        substitute: ε under substitute adjacency, which protects a record's contents.
        poisson: what `substitute` would be with Poisson batches of the same noise multiplier, sample rate and steps.
        group_privacy: the substitute ε that group privacy derives from `zero_out` accounting alone; None for batches of
            fixed size.
        found_members: the largest share of the members that an attack can identify at a 1 % false-positive rate.
        found_contents: the same for the records with one of two values, where the attack decides between the two.
        risk: what an attacker with a prior can learn about a record's contents, under substitute adjacency.
        delta: the δ of all of them.
        history: phases of (noise_multiplier, sample_rate, steps).
        sampling: how batches were drawn, a `dpsub.accounting.Sampling`: what all numbers but `poisson` hold for.
        loader_seen: whether the sampling was read from a data loader.
        reported: the name of Opacus's own accountant and the ε that it reports; None for dpsub's, or a history.
        trials: how many such trainings all numbers are for together, of which this is the best.
        random_trials: `substitute` if their number had been random instead, on average `trials`, as
            `random_trials_epsilon` describes; None for one training.
        audit: the `Report` of the training's auditor; None if there was none.
    """

    add_remove: float | None
    zero_out: float
    substitute: float
    poisson: float
    group_privacy: float | None
    found_members: float
    found_contents: float
    risk: Risk
    delta: float
    history: tuple[tuple[float, float, int], ...]
    sampling: Sampling
    loader_seen: bool = False
    reported: tuple[str, float] | None = field(default=None, compare=False)
    trials: int = 1
    random_trials: float | None = None
    audit: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in self._paragraphs())

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self._paragraphs())

    def to_dict(self) -> dict[str, Any]:
        """The statement for a file, such as a model card or technical documentation: what `json.dumps` takes.

        Numbers are not rounded, and None stands for what is not there or not limited. Beside this module,
        privacy_statement.schema.json is a JSON Schema that describes each key.
        """
        adjacency, epsilon, protects, condition = self.presence
        report, sampling = self.audit, self.sampling.words
        bound = None if report is None else report.training
        return {
            "unit_of_protection": "one record",
            "delta": self.delta,
            "membership": {"protects": protects, "adjacency": adjacency, "epsilon": epsilon, "condition": condition},
            "contents": {"protects": CONTENTS, "adjacency": "substitute", "epsilon": self.substitute},
            "sampling": {"name": str(self.sampling), "in_words": sampling, "seen_in_data_loader": self.loader_seen},
            "phases": [dict(zip(PHASE, phase, strict=True)) for phase in self.history],
            "trainings_tried": self.trials,
            "risk": {
                "prior": list(self.risk.prior),
                "guessed_right_at_most": self.risk.accuracy,
                "guessed_right_without_model": max(self.risk.prior),
                "belief_at_most": self.risk.posterior,
            },
            "audit": report
            and {
                "verdict": report.verdict,
                "refuted": report.refuted,
                "confidence": 1 - report.alpha,
                "adjacency": report.adjacency,
                "steps_audited": report.observations,
                "epsilon_at_least": bound.epsilon if bound and bound.valid else None,
                "faults": [fault for fault in (report.fault, report.clipping) if fault is not None],
                "not_audited": list(report.notes),
            },
            "statement": self._paragraphs(),
            "computed_with": versions("opacus", "torch"),
        }

    @property
    def presence(self) -> tuple[str, float, str, str]:
        """Of membership: the adjacency and ε, what they protect, and under which condition."""
        if self.add_remove is None:
            condition = f"Under add/remove adjacency there is no ε: {self.sampling.without_epsilon['add_remove']}."
            return "zero_out", self.zero_out, "whether a record was used or left out of its batches", condition
        condition = (
            "This holds only if the number of records is public, or if the sample rate and the expected batch size "
            "were fixed without it. Opacus computes both from the number of records."
        )
        return "add_remove", self.add_remove, "whether a record was in the training data", condition

    def _paragraphs(self) -> list[str]:
        """Of the text, in this order: faults that an audit found; training and sampling; trials; membership; contents;
        plain words; what to state; an audit that found no fault.
        """
        phases = [
            f"{steps:,} steps at noise multiplier {sigma:.4g} and sample rate {q:.4g}"
            for sigma, q, steps in self.history
        ]
        steps = sum(count for *_, count in self.history)
        if len(phases) > 3:
            phases = [f"{steps:,} steps in {len(phases)} phases of different noise multiplier or sample rate"]
        adjacency, epsilon, protects, condition = self.presence
        presence = ADJACENCY_IN_WORDS[adjacency]
        by_groups = ""
        if self.group_privacy is not None and self.group_privacy < math.inf:
            by = presence if self.sampling.own_coins else "zero-out"
            by_groups = f" From {by} accounting alone, group privacy would give ε = {rounded(self.group_privacy)}."
        paragraphs = [
            f"This model was trained with differentially private SGD ({'; '.join(phases)}; δ = {self.delta:g}). "
            + self._assumed_sampling(),
            f"Membership: {protects} is protected with ε = {rounded(epsilon)} ({presence} "
            f"adjacency). {condition}{self._opacus_epsilon()} At a 1 % false-positive rate, an attack identifies at "
            f"most {_percent(self.found_members)} of the members.",
            f"Labels and attributes: {CONTENTS} are protected with "
            f"ε = {rounded(self.substitute)} (substitute adjacency). An attack that decides which of two values a "
            "record has, and takes 1 % of the records with the second value for ones with the first, identifies at "
            f"most {_percent(self.found_contents)} of those with the first." + self._effect_of_sampling(),
            self._in_plain_words(),
            f"State the substitute ε to protect a record's contents and the {presence} ε to protect its presence. "
            "Always name the adjacency. The substitute ε is an upper bound computed for this training." + by_groups,
        ]
        if self.random_trials is not None:
            paragraphs.insert(1, self._best_of_trials(self.random_trials))
        if self.audit is not None:
            wrong = self.audit.refuted or self.audit.clipping is not None
            paragraphs.insert(0 if wrong else len(paragraphs), self._audited(steps))
        return paragraphs

    def _audited(self, steps: int) -> str:
        report = self.audit
        tested = f"noise multiplier {report.noise_multiplier:.4g} is {report.verdict}"
        holds = f"({100 * (1 - report.alpha):g} % confidence, {ADJACENCY_IN_WORDS[report.adjacency]} adjacency)"
        told = [f"An audit of {report.observations:,} of the {steps:,} steps: {tested} {holds}."]
        if report.refuted:
            told.insert(0, "This training run is refuted: the numbers below are those that correct steps would have.")
        if report.fault is not None:
            told.append(f"The noise is not what is claimed: {report.fault}.")
        if report.clipping is not None:
            told.append(f"Clipping is not what is claimed, and the numbers assume it: {report.clipping}.")
        if report.training is not None and report.training.valid and report.training.epsilon:
            told.append(f"The ε of these steps is at least {rounded(report.training.epsilon, up=False)}.")
        return " ".join([*told, *report.notes])

    def _best_of_trials(self, random_trials: float) -> str:
        runs, instead = f"{self.trials:,}", rounded(random_trials)
        return (
            f"It is the best of {runs} such training runs on the same records, so all numbers are for the {runs} "
            f"together, which is {runs} times the steps. They hold if the choice saw these records only through the "
            "models, for example by their accuracy on other data. If each run had been the last one with probability "
            f"1/{runs}, and only the best were released, the substitute ε would be at most {instead}."
        )

    def _in_plain_words(self) -> str:
        prior, sure = self.risk.prior, self.risk.posterior
        first, guess, value = f"{100 * prior[0]:.4g} %", "whether the record has it", "it"
        gives = f"a label or another value of a record a probability of {first}"
        if len(prior) > 2:
            gives = f"{len(prior):,} values of a label or an attribute probabilities, {first} to the first of them,"
            guess, value = "which of them the record has", "the first"
        once_in = math.floor((1 + 1e-9) / self.delta)
        return (
            f"In plain words: an attacker who knows all other records, and gives {gives} before seeing the model, "
            f"guesses {guess} and is right with a probability of at most {_percent(self.risk.accuracy)} "
            f"({100 * max(prior):.7g} % without the model). "
            + (
                f"In all but at most one of {once_in:,} training runs, the attacker ends at most {_percent(sure)} sure "
                f"that the record has {value} ({first} without the model)."
                if sure < SURE
                else f"How sure the attacker becomes that the record has {value} is not limited."
            )
        )

    def _opacus_epsilon(self) -> str:
        """Why Opacus reports another ε for the same steps."""
        if self.reported is None or self.trials > 1:
            return ""
        name, epsilon = self.reported
        why = REASONS.get(name, "another method") if self.sampling == Poisson() else "for Poisson batches alone"
        return f" Opacus's accountant {name!r} reports ε = {epsilon:.3g}, {why}."

    def _effect_of_sampling(self) -> str:
        """What the sampling does to the ε of a record's contents."""
        if self.sampling == Poisson():
            return " A replaced record leaves the number of records as it was."
        cut = isinstance(self.sampling, TruncatedPoisson)
        share = "Most of this ε comes from" if self.poisson < self.substitute / 2 else "This ε depends on"
        return (
            f" {share} how batches were drawn and averaged: with Poisson batches, divided by their expected size, and "
            f"the same noise, sample rate and steps it would be {rounded(self.poisson)} "
            f"({'a larger maximum' if cut else 'make_private(poisson_sampling=True)'})."
        )

    def _assumed_sampling(self) -> str:
        """For which sampling the numbers hold, and how it is known."""
        if self.sampling == Poisson() and not self.loader_seen:
            return (
                "The numbers hold only if batches were drawn by Poisson sampling, which was not checked: pass "
                "data_loader to check it. With shuffled batches the true ε are larger."
            )
        return f"The numbers hold for {self.sampling.words}{', as its data loader shows' if self.loader_seen else ''}."


def statement_of(
    history: tuple[Phase, ...], *, delta: float, prior: Prior, sampling: Sampling, trials: int = 1, **about: Any
) -> PrivacyStatement:
    """The statement of a training with this history, for the arguments of `dpsub.opacus.privacy_statement`.

    `about` are attributes of the statement that no number depends on.
    """

    def training(sampling: Sampling) -> dict[str, Any]:
        phases = sampling.phases(history) if trials > 1 else history  # each training begins anew
        return {"sampling": sampling, "history": [(sigma, q, trials * steps) for sigma, q, steps in phases]}

    mechanism = training(sampling)

    def epsilon(adjacency: str, mechanism: dict[str, Any] = mechanism) -> float:
        return float(epsilon_delta.epsilon(delta=delta, adjacency=adjacency, **mechanism))

    def identified(adjacency: str) -> float:
        return 1 - float(epsilon_delta.tradeoff(FALSE_ALARMS, adjacency=adjacency, **mechanism))

    # A record that is replaced by nothing is replaced.
    presence = "substitute" if "zero_out" in sampling.without_epsilon else "zero_out"
    # Where a record's coin is its own, it makes no difference to the others whether it is left out or removed.
    zero_out, removed = epsilon(presence), None
    if "add_remove" not in sampling.without_epsilon:
        removed = zero_out if sampling.own_coins else epsilon("add_remove")
    return PrivacyStatement(
        add_remove=removed,
        zero_out=zero_out,
        substitute=epsilon("substitute"),
        poisson=epsilon("substitute", training(Poisson())),
        group_privacy=group_privacy_epsilon(delta=delta, **mechanism) if presence == "zero_out" else None,
        found_members=identified(presence if removed is None else "add_remove"),
        found_contents=identified("substitute"),
        risk=risk(prior=prior, fpr=FALSE_ALARMS, delta=delta, adjacency="substitute", **mechanism),
        delta=delta,
        history=history,
        sampling=sampling,
        trials=trials,
        random_trials=None if trials == 1 else random_trials_epsilon(trials, delta, history, sampling),
        **about,
    )


def random_trials_epsilon(mean: float, delta: float, history: tuple[Phase, ...], sampling: Sampling) -> float:
    r"""The substitute ε of the best of a random number of trainings, each of which is the last with probability 1/mean.

    Let γ = 1/mean, and let δ₁(ε) be that of one training. The best of them is (ε, δ)-DP with

    .. math:: \varepsilon = \varepsilon_1(\gamma\delta) +
        2 \min_{\hat\varepsilon} \ln\big(e^{\hat\varepsilon} + (1/\gamma - 1)\,\delta_1(\hat\varepsilon)\big).

    The book proves it (*The theorems behind an ε*, "The best of several training runs").

    Source: Papernot and Steinke (2022) for the method; Koskela, Redberg and Wang (2024) for bounds in terms of δ(ε).
    """
    training: dict[str, Any] = {"history": history, "sampling": sampling, "adjacency": "substitute"}
    once = float(epsilon_delta.epsilon(delta=delta / mean, **training))
    levels = np.linspace(0.0, once, LEVELS)
    deltas = np.asarray(epsilon_delta.delta(epsilon=levels, **training))
    return once + 2 * float(np.min(np.logaddexp(levels, np.log((mean - 1) * deltas + LEAST_DELTA))))


def rounded(epsilon: float, up: bool = True) -> str:
    """ε with three digits, rounded up so that an upper bound remains one; otherwise down."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{(math.ceil if up else math.floor)(epsilon / unit) * unit:.{max(0, 2 - math.floor(math.log10(epsilon)))}f}"


def _percent(rate: float) -> str:
    """With one decimal, or as many as it takes to stay below 100, rounded up."""
    decimals = 1 if rate < 0.999 or rate >= SURE else math.floor(-math.log10(1 - rate)) - 1
    return f"{math.ceil(10 ** (decimals + 2) * rate) / 10**decimals:.12g} %"
