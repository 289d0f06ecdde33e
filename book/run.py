"""Execute the notebooks with papermill, each with the parameters of a preset, and say what came of each.

run.py [NOTEBOOK ...] [--preset quick|laptop|paper|YOURS] [-p NAME VALUE ...] [--device auto|cpu|cuda]
       [--results FOLDER] [--filled FOLDER] [--show] [--all]

Without --results, a notebook is not executed again while what it was made from is unchanged; --all executes it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import copies
import nbformat
import papermill
import presets
import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "_build" / "executed"
QUICK_CELL = 900  # seconds: a cell that takes longer in the quick preset hangs
LATE = 60  # seconds: how long after its end a cell's outputs may arrive. One that glues a thousand numbers needs some
AT_ONCE = 2  # notebooks, where no audits are kept: many of their cells use one core
ALL_NOTEBOOKS = ("quick", "laptop", "paper")  # these presets execute every notebook; others those that they name
# Begun first on a fresh copy, so that none of them is left to run alone at the end.
LONGEST = (
    *("quickstart", "steps_canaries", "own_model", "own_training"),
    *("rerunning", "fig4_from_scratch", "s6_attribute"),
)
# Made-up shoppers are labelled by k-means, where near ties depend on rounding, and OpenBLAS rounds by the instructions
# that it uses. The kept audits of made-up shoppers in results/laptop were made with those for AVX2.
OPENBLAS = {"OPENBLAS_CORETYPE": "Haswell"} if platform.machine() in ("x86_64", "AMD64") else {}
MEASURE_SPEED = ("bank_training", "what_it_costs")  # executed alone, on all cores, after the others


class Job(NamedTuple):
    """A notebook to execute, and where its executed copy goes."""

    source: Path
    target: Path
    parameters: dict[str, object]
    made_from: dict[str, str]
    timeout: int | None = None  # seconds a cell may take
    progress: bool = True

    @property
    def name(self) -> str:
        return self.source.stem


class Outcome(NamedTuple):
    """What came of one notebook: it ran, or was unchanged, or all its audits were there to be read, or it failed."""

    what: str
    seconds: float
    trained: int = 0  # models
    read: int = 0
    error: str = ""


def execute(job: Job) -> None:
    """Execute one notebook, from its folder as JupyterLab does; what it raises is passed on."""
    copies.prepare(job.source, job.target)
    executed = papermill.execute_notebook(
        job.target,
        job.target,
        parameters=job.parameters,
        cwd=job.source.parent,
        execution_timeout=job.timeout,
        iopub_timeout=LATE,
        progress_bar={"desc": job.name, "unit": "cell"} if job.progress else False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    copies.mark(job.target, executed, job.made_from)


def attempt(job: Job) -> Outcome:
    """Execute one notebook; what it raises is shown and told, so that the next one can still run."""
    begin, what, error = time.monotonic(), "failed", ""
    try:
        execute(job)
        what = "ran"
    except papermill.PapermillExecutionError as raised:
        print(raised, file=sys.stderr, flush=True)
        error = f"{raised.ename}: {raised.evalue}".splitlines()[0]
    except KeyboardInterrupt:
        what, error = "stopped", "KeyboardInterrupt"
    except Exception as raised:  # a kernel that died, a cell that hangs
        print(f"{job.name}: {raised}", file=sys.stderr, flush=True)
        error = (f"{type(raised).__name__}: {raised}".splitlines() or [""])[0]
    return Outcome(what, time.monotonic() - begin, error=error)


def parameters(name: str, found: dict[str, dict[str, Any]], device: str, results: Path | None) -> dict[str, object]:
    """What a preset changes of the notebook's own defaults, and where it trains and keeps its audits."""
    common = {} if device == "auto" else {"device": device}
    common |= {} if results is None else {"results": os.fspath((results / name).resolve())}
    known = presets.defaults(SOURCES / f"{name}.ipynb")
    return found.get(name, {}) | {key: value for key, value in common.items() if key in known}


def notebooks(preset: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """The notebooks that a preset executes: all, or those that a preset of one's own has a section for."""
    return sorted(path.stem for path in SOURCES.glob("*.ipynb")) if preset in ALL_NOTEBOOKS else sorted(found)


def stored_models(folder: Path) -> int:
    """How many models are in the stores of this folder."""
    if not folder.exists():
        return 0
    from dpsub import audits

    found = 0
    for store in folder.rglob("*.db"):
        with suppress(ValueError):  # the notebook that reads it says what is wrong
            found += audits.status(store).stored
    return found


def rerun(job: Job, results: Path | None) -> Outcome:
    """Execute one notebook, and count the models that it read and trained."""
    if not results:
        return attempt(job)
    folder = results / job.name
    before = stored_models(folder)
    outcome = attempt(job)
    after = stored_models(folder)
    what = "read" if after and after == before and outcome.what == "ran" else outcome.what
    return outcome._replace(what=what, trained=after - before, read=before)


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
    """Execute so many notebooks at a time, each in a process, and say which are done; an interrupt stops all."""
    jobs = [job._replace(progress=False) for job in longest_first(jobs)]
    for count, (name, outcome) in enumerate(in_processes(jobs, at_once), start=1):
        print(f"[{count:>2}/{len(jobs)}] {name:24}{outcome.what:8}{outcome.seconds:6,.0f} s  {outcome.error}".rstrip())
        yield name, outcome


def in_processes(jobs: list[Job], at_once: int) -> Iterator[tuple[str, Outcome]]:
    """Execute so many notebooks at a time, which share the cores; each is told when it is done."""
    threads = max(1, (os.cpu_count() or 1) // at_once)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_prepare_worker, initargs=(threads,))
    try:
        waiting = {pool.submit(attempt, job): job.name for job in jobs}
        for done in as_completed(waiting):
            try:
                yield waiting[done], done.result()
            except BrokenProcessPool:
                error = "the process that executed notebooks was killed; is the memory full?"
                yield waiting[done], Outcome("failed", 0.0, error=error)
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _prepare_worker(threads: int) -> None:
    """A kernel inherits the threads; the process that started this one passes an interrupt on by ending it."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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

    from dpsub import audits

    made = audits.made_here(device)
    cores = torch.get_num_threads()
    size = "1 core" if cores == 1 else f"{cores} cores"
    if made["device"] != "cpu":
        size = "1 GPU"
    return f"{made['device']}, {size}", made["commit"]


def tagged_text(path: Path, tag: str) -> str:
    """The plain text that the cells with this tag show."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out for cell in cells if tag in cell.metadata.get("tags", []) for out in cell.get("outputs", [])]
    return "\n".join(out["data"]["text/plain"] for out in outputs if "text/plain" in out.get("data", {}))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; by default all that the preset has")
    parser.add_argument("--preset", default="quick")
    changed = {"metavar": ("NAME", "VALUE"), "help": "a parameter of these notebooks; VALUE is YAML"}
    parser.add_argument("-p", "--parameter", nargs=2, action="append", default=[], **changed)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--results", type=Path, help="folder to keep audits in, to go on with and to read again")
    parser.add_argument("--filled", type=Path, help="folder for executed copies with the numbers in their prose")
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
    for name, value in OPENBLAS.items():
        os.environ.setdefault(name, value)
    preset, results = arguments.preset, arguments.results
    try:
        changes = presets.sections(SOURCES, preset)
        for name in arguments.notebooks:
            presets.check_notebook(SOURCES, name)
        names = arguments.notebooks or notebooks(preset, changes)
        own = {name: yaml.safe_load(value) for name, value in arguments.parameter}
        for name in names if own else ():
            presets.check(f"-p: {name}", own, presets.defaults(SOURCES / f"{name}.ipynb"))
            changes[name] = changes.get(name, {}) | own
        device, commit = machine(arguments.device)
    except (ValueError, yaml.YAMLError) as error:
        raise SystemExit(str(error)) from None
    jobs = []
    for name in names:
        source = SOURCES / f"{name}.ipynb"
        given = parameters(name, changes, arguments.device, results)
        makings = copies.made_from(source, given, device.rpartition(",")[0])
        jobs.append(Job(source, EXECUTED / source.name, given, makings, QUICK_CELL if preset == "quick" else None))

    begin, outcomes = time.monotonic(), {}
    if not results and not arguments.all:
        same = [job.name for job in jobs if not copies.changed(job.target, job.made_from)]
        outcomes = {name: Outcome("unchanged", 0.0) for name in same}
    with suppress(KeyboardInterrupt):
        for name, outcome in run_all([job for job in jobs if job.name not in outcomes], results, (device, commit)):
            outcomes[name] = outcome
    seconds = time.monotonic() - begin

    stopped = len(outcomes) < len(jobs) or any(outcome.what == "stopped" for outcome in outcomes.values())
    if arguments.show:
        for name in (name for name in names if name in outcomes and not outcomes[name].error):
            print(f"\n{tagged_text(EXECUTED / f'{name}.ipynb', 'table')}\n")
    for name in (name for name in names if arguments.filled and name in outcomes and not outcomes[name].error):
        arguments.filled.mkdir(parents=True, exist_ok=True)
        executed = nbformat.read(EXECUTED / f"{name}.ipynb", as_version=4)
        nbformat.write(copies.for_readers(copies.filled(copies.clean(executed))), arguments.filled / f"{name}.ipynb")
    if stopped:
        rest = "from the models that are stored" if results else "with the notebooks that are left"
        print(f"stopped; the same command goes on {rest}", file=sys.stderr)
    print(f"\n{preset} on {device}, commit {commit}: {seconds:,.0f} s; executed notebooks in _build/executed/")
    for name in (name for name in names if name in outcomes):
        outcome = outcomes[name]
        models = f"{outcome.trained:>8,} models trained, {outcome.read:>8,} read" if results else ""
        print(f"  {name:24}{outcome.what:10}{outcome.seconds:6,.0f} s  {models}  {outcome.error}".rstrip())
        if results and "store holds another audit" in outcome.error:
            print("    give --results another folder (`make rerun RESULTS=results/mine`), or these audits' parameters")
        elif outcome.error and outcome.read:
            folder = os.fspath(results / name)
            print(f"    the {outcome.read:,} models in {folder} stay; dpsub.audits.load_all({folder!r}) reads them")
    return int(stopped or any(outcome.error for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
