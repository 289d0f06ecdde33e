"""What dpsub computes, in a shell: both ε of a training, the noise for a target, and the bound that scores certify."""

from __future__ import annotations

import argparse
import csv
import json
import math

from dpsub import accounting
from dpsub._core import checks
from dpsub.accounting.samplings import Sampling
from dpsub.accounting.statements import ADJACENCY_IN_WORDS, rounded, statement_of

NUMBERS = {"batch-size": int, "records": int, "epochs": int, "sample-rate": float, "steps": int}


def main(arguments: list[str] | None = None) -> None:
    """Run a command. An error ends the process with status 2."""
    parser = argparse.ArgumentParser(prog="dpsub", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    of_epsilon = commands.add_parser("epsilon", help="both ε of a training with DP-SGD, and its privacy statement")
    of_epsilon.add_argument("--noise-multiplier", type=float, required=True)
    of_noise = commands.add_parser("noise", help="the least noise multiplier for an ε, and the statement with it")
    of_noise.add_argument("--epsilon", type=float, required=True, help="the target")
    of_noise.add_argument("--adjacency", choices=checks.ADJACENCIES, required=True, help="of the target")
    for training in (of_epsilon, of_noise):
        training.set_defaults(run=state)
        for name, kind in NUMBERS.items():
            training.add_argument(f"--{name}", type=kind)
        training.add_argument("--sampling", default="poisson", help="poisson (the default), epochs ...")
        training.add_argument("--prior", type=float, nargs="+", default=[0.5], help="of one of two values, or of all")
        training.add_argument("--trials", type=int, default=1, help="the best of so many trainings on these records")
        training.add_argument("--json", action="store_true", help="print the statement for a file")
    of_scores = commands.add_parser("bound", help="the lower bound on ε that the scores of models certify")
    of_scores.set_defaults(run=bound)
    of_scores.add_argument("file", help="CSV with the columns score and bit: 0 if trained with z, 1 if with z′")
    of_scores.add_argument("--claim", default="gdp", help="gdp (the default), dp ...")
    of_scores.add_argument("--rule", default="ranks", help="ranks (the default), bets ...")
    of_scores.add_argument("--alpha", type=float, default=0.05, help="one minus the confidence")
    for command in (of_epsilon, of_noise, of_scores):
        command.add_argument("--delta", type=float, required=True)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))


def state(options: argparse.Namespace) -> None:
    """Print both ε and the statement, of a training with a noise multiplier that is given or that meets a target."""
    q, steps, how = sample_rate_and_steps(options)
    sampling, trials = Sampling.of(options.sampling), checks.whole("trials", options.trials)
    sigma = getattr(options, "noise_multiplier", None)
    if sigma is None:
        [(_, rate, count)] = sampling.phases(checks.history([(1.0, q, steps)]))  # of each training, which begins anew
        asked = {"target_epsilon": options.epsilon, "delta": options.delta, "adjacency": options.adjacency}
        sigma = accounting.noise_multiplier(sample_rate=rate, steps=trials * count, sampling=sampling, **asked)
        sigma = math.ceil(1e4 * sigma) / 1e4
        how += f"Noise multiplier {sigma:.10g} is enough.\n"
    prior = options.prior if len(options.prior) > 1 else options.prior[0]
    history = tuple(checks.history([(sigma, q, steps)]))
    stated = statement_of(history, delta=options.delta, prior=prior, sampling=sampling, trials=trials)
    adjacency, presence, *_ = stated.presence
    text = (
        f"{how}ε = {rounded(presence)} for membership ({ADJACENCY_IN_WORDS[adjacency]} adjacency)\n"
        f"ε = {rounded(stated.substitute)} for labels and attributes (substitute adjacency)\n\n{stated}"
    )
    print(json.dumps(stated.to_dict(), indent=2) if options.json else text)


def sample_rate_and_steps(options: argparse.Namespace) -> tuple[float, int, str]:
    """The sample rate and the steps, and how they follow from the sizes of a data loader, as in Opacus."""
    size, records, epochs, rate, steps = (getattr(options, name.replace("-", "_")) for name in NUMBERS)
    if None not in (rate, steps) and size is records is epochs is None:
        return rate, steps, ""
    if None in (size, records) or rate is not None or (epochs is None) == (steps is None):
        raise ValueError("give --batch-size and --records with --epochs or --steps, or else --sample-rate and --steps")
    if options.sampling == "without_replacement":
        raise ValueError("give --sample-rate, b/n, and --steps for batches without replacement")
    loaded = taken = math.ceil(checks.whole("--records", records) / checks.whole("--batch-size", size))
    if options.sampling != "epochs":
        taken = int(1 / (1 / loaded))  # the sampler of Opacus rounds down, which can lose one
    of_opacus = "" if taken == loaded else f", of which Opacus's sampler takes {taken:,}"
    steps = epochs * taken if steps is None else steps
    how = (
        f"{records:,} records in batches of {size:,}: {loaded:,} batches an epoch{of_opacus}. As in Opacus, the sample "
        f"rate is 1/{taken:,} = {1 / taken:.4g}, not b/n = {size / records:.4g}. There are {steps:,} steps.\n"
    )
    return 1 / taken, steps, how


def bound(options: argparse.Namespace) -> None:
    """Print the lower bound of the scores and bits in a file."""
    from dpsub.estimators import epsilon_lower_bound

    with open(options.file, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        if not {"score", "bit"} <= set(table.fieldnames or ()):
            raise ValueError(f"{options.file} must have the columns score and bit, got {table.fieldnames}")
        rows = [(float(row["score"]), float(row["bit"])) for row in table]
    asked = {name: getattr(options, name) for name in ("delta", "claim", "rule", "alpha")}
    print(epsilon_lower_bound([score for score, _ in rows], [bit for _, bit in rows], **asked))


if __name__ == "__main__":
    main()
