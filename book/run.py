"""Execute the notebooks with papermill, each with the parameters of a preset, and say what came of each.

run.py [NOTEBOOK ...] [--preset quick|laptop|paper|YOURS] [--device auto|cpu|cuda] [--results FOLDER] [--show] [--all]

Without --results, a notebook is not executed again while what it was made from is unchanged; --all executes it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import execution
import made_from
import nbformat
import papermill
import presets
from execution import Done, Job

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "_build" / "executed"
QUICK_CELL = 900  # seconds: a cell that takes longer in the quick preset hangs
AT_ONCE = 2  # notebooks, where no audits are kept: many of their cells use one core
# Begun first on a fresh copy, so that none of them is left to run alone at the end.
LONGEST = (
    "quickstart",
    "steps_canaries",
    "own_model",
    "own_training",
    "rerunning",
    "fig4_from_scratch",
    "s6_attribute",
)
MEASURE_SPEED = ("bank_training", "what_it_costs")  # executed alone, on all cores, after the others


class Outcome(NamedTuple):
    """What came of one notebook: it ran, or was unchanged, or all its audits were there to be read, or it failed."""

    what: str
    seconds: float
    trained: int
    read: int
    error: str = ""


def parameters(name: str, preset: str, device: str, results: Path | None) -> dict[str, object]:
    """What a preset changes of the notebook's own defaults, and where it trains and keeps its audits."""
    path = SOURCES / "params" / preset / f"{name}.yaml"
    if not path.exists():
        there = ", ".join(sorted(p.name for p in (SOURCES / "params").iterdir()))
        raise SystemExit(f"no parameters for {name} in the preset {preset!r}; there are {there}")
    try:
        found = presets.read(path, SOURCES / f"{name}.ipynb")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    common = {} if device == "auto" else {"device": device}
    common |= {} if results is None else {"results": os.fspath((results / name).resolve())}
    known = papermill.inspect_notebook(SOURCES / f"{name}.ipynb")
    return found | {key: value for key, value in common.items() if key in known}


def preset_names(preset: str) -> list[str]:
    """The notebooks that a preset has parameters for."""
    folder = SOURCES / "params" / preset
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if not names:
        there = ", ".join(sorted(p.name for p in (SOURCES / "params").iterdir()))
        raise SystemExit(f"no parameters in the preset {preset!r}; there are {there}")
    return names


def job_of(name: str, preset: str, device: str, results: Path | None, made_on: str = "") -> Job:
    """The execution of a notebook with a preset's parameters into _build/executed."""
    source, found = SOURCES / f"{name}.ipynb", parameters(name, preset, device, results)
    makings = made_from.made_from(source, found, made_on)
    return Job(source, EXECUTED / f"{name}.ipynb", found, makings, QUICK_CELL if preset == "quick" else None)


def stored_models(folder: Path) -> int:
    """How many models are in the stores of this folder."""
    if not folder.exists():
        return 0
    from dpsub import audits

    found = 0
    for store in [*folder.rglob("*.zarr"), *folder.rglob("*.zarr.zip")]:
        with suppress(ValueError):  # the notebook that reads it says what is wrong
            found += audits.status(store).stored
    return found


def pack_finished(folder: Path) -> None:
    """Put each complete store of this folder into one file."""
    from dpsub import audits

    for store in [*folder.rglob("*.zarr")]:
        with suppress(ValueError):
            if audits.status(store).complete:
                audits.pack(store)


def rerun(job: Job, results: Path | None) -> Outcome:
    """Execute one notebook, and count the models that it read and trained."""
    folder = results / job.name if results else None
    before = stored_models(folder) if folder else 0
    done = execution.attempt(job)
    if folder:
        pack_finished(folder)
    return outcome_of(done, before, stored_models(folder) if folder else 0)


def outcome_of(done: Done, before: int = 0, after: int = 0) -> Outcome:
    what = "read" if after and after == before else "ran"
    if done.error:
        what = "stopped" if done.error.startswith("KeyboardInterrupt") else "failed"
    return Outcome(what, done.seconds, after - before, before, done.error)


def longest_first(jobs: list[Job]) -> list[Job]:
    """In the order of how long they took the last time; those that are new come first, the LONGEST of them before."""

    def place(job: Job) -> tuple[float, bool]:
        try:
            record = json.loads(job.target.read_text())["metadata"]["papermill"]
            return -float(record["duration"]), False
        except (OSError, ValueError, KeyError, TypeError):
            return -float("inf"), job.name not in LONGEST

    return sorted(jobs, key=place)


def side_by_side(jobs: list[Job], at_once: int) -> Iterator[tuple[str, Outcome]]:
    """Execute several notebooks at a time, and say which are done."""
    cores = os.cpu_count() or 1
    quiet = [job._replace(progress=False) for job in longest_first(jobs)]
    for count, (name, done) in enumerate(execution.side_by_side(quiet, at_once, max(1, cores // at_once)), start=1):
        outcome = outcome_of(done)
        print(f"[{count:>2}/{len(jobs)}] {name:24}{outcome.what:8}{outcome.seconds:6,.0f} s  {outcome.error}".rstrip())
        yield name, outcome


def keep(outcome: Outcome, name: str, results: Path, device: str, commit: str) -> None:
    """Note what a notebook cost beside its stores: what it went on from is added, unless it only read it."""
    if outcome.what == "read" or (outcome.error and not outcome.trained):
        return
    path = results / "runs.json"
    runs = json.loads(path.read_text()) if path.exists() else {}
    run = {"seconds": outcome.seconds, "models trained": outcome.trained, "models read": outcome.read}
    earlier = runs.get(name)
    if earlier and 0 < outcome.read == earlier["models trained"] + earlier["models read"]:
        run = {key: value + earlier[key] for key, value in run.items()} | {"models read": earlier["models read"]}
    runs[name] = {
        **run,
        "seconds": round(run["seconds"]),
        "device": device,
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n")


def machine(device: str) -> tuple[str, str]:
    """The device that notebooks train on, in words, and the commit that they train with."""
    import torch

    from dpsub.audits.shard_provenance import made_on
    from dpsub.trainers import devices

    made = made_on(devices.device(device))
    cores = torch.get_num_threads()
    size = "1 GPU" if made.device != "cpu" else "1 core" if cores == 1 else f"{cores} cores"
    return f"{made.device}, {size}", made.commit


def tagged_text(path: Path, tag: str) -> str:
    """The plain text that the cells with this tag show."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out for cell in cells if tag in cell.metadata.get("tags", []) for out in cell.get("outputs", [])]
    return "\n".join(out["data"]["text/plain"] for out in outputs if "text/plain" in out.get("data", {}))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; by default all that the preset has")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--results", type=Path, help="folder to keep audits in, to go on with and to read again")
    parser.add_argument("--show", action="store_true", help="print what the notebooks' tables say")
    parser.add_argument("--all", action="store_true", help="execute also what is unchanged since it was executed")
    return parser.parse_args()


def run_all(jobs: list[Job], results: Path | None, ran_on: tuple[str, str]) -> Iterator[tuple[str, Outcome]]:
    """Execute the notebooks: those that keep audits or measure speed one after another, others side by side."""
    beside = [job for job in jobs if not results and job.name not in MEASURE_SPEED]
    if len(beside) > 1:
        yield from side_by_side(beside, AT_ONCE)
        jobs = [job for job in jobs if job not in beside]
    for job in jobs:
        outcome = rerun(job, results)
        if results:
            keep(outcome, job.name, results, *ran_on)
        yield job.name, outcome
        if outcome.what == "stopped":
            return


def main() -> int:
    arguments = options()
    preset, results = arguments.preset, arguments.results
    names = arguments.notebooks or preset_names(preset)
    for name in names:
        if not (SOURCES / f"{name}.ipynb").exists():
            raise SystemExit(f"there is no notebook {name!r} in {SOURCES.relative_to(ROOT)}/")
        parameters(name, preset, arguments.device, results)
    try:
        device, commit = machine(arguments.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    jobs = [job_of(name, preset, arguments.device, results, device.rpartition(",")[0]) for name in names]

    begin, outcomes = time.monotonic(), {}
    if not results and not arguments.all:
        same = [job.name for job in jobs if not made_from.changed(job.target, job.made_from)]
        outcomes = {name: Outcome("unchanged", 0.0, 0, 0) for name in same}
    with suppress(KeyboardInterrupt):
        for name, outcome in run_all([job for job in jobs if job.name not in outcomes], results, (device, commit)):
            outcomes[name] = outcome
    seconds = time.monotonic() - begin

    stopped = len(outcomes) < len(jobs) or any(outcome.what == "stopped" for outcome in outcomes.values())
    if arguments.show:
        for name in (name for name in names if name in outcomes and not outcomes[name].error):
            print(f"\n{tagged_text(EXECUTED / f'{name}.ipynb', 'table')}\n")
    if stopped:
        rest = "from the models that are stored" if results else "with the notebooks that are left"
        print(f"stopped; the same command goes on {rest}", file=sys.stderr)
    print(f"\n{preset} on {device}, commit {commit}: {seconds:,.0f} s; executed notebooks in _build/executed/")
    for name in (name for name in names if name in outcomes):
        outcome = outcomes[name]
        models = f"{outcome.trained:>8,} models trained, {outcome.read:>8,} read" if results else ""
        print(f"  {name:24}{outcome.what:10}{outcome.seconds:6,.0f} s  {models}  {outcome.error}".rstrip())
        if outcome.error and outcome.read:
            folder = os.fspath(results / name)
            print(f"    the {outcome.read:,} models in {folder} stay; dpsub.audits.load_all({folder!r}) reads them")
    return int(stopped or any(outcome.error for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
