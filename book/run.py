"""Execute the notebooks with papermill, each with the parameters of a preset, and say what came of each.

run.py [NOTEBOOK ...] [--preset quick|laptop|paper|YOURS] [-p NAME VALUE ...] [--device auto|cpu|cuda]
       [--results FOLDER] [--show] [--all]

Without --results, a notebook is not executed again while its sources, parameters, packages and everything in dpsub,
studies and results are unchanged; --all executes it. With --results, audits continue from what is stored there.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import copies
import nbformat
import papermill
import presets
import yaml
from jupyter_core.utils import ensure_event_loop

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "_build" / "executed"
QUICK_CELL = 900  # seconds: a cell that takes longer in the quick preset hangs
LATE = 60  # seconds: how long after its end a cell's outputs may arrive
START = 300  # seconds that a kernel may take to start: a busy machine needs more than papermill's 60
AT_ONCE = 2  # notebooks, where no audits are kept: many of their cells use one core
ALL_NOTEBOOKS = ("quick", "laptop", "paper")  # these presets execute every notebook; others those that they name
LONGEST = ("quickstart", "steps_settings", "own_model", "own_training", "rerunning", "fig4_from_scratch")  # begun first
MEASURE_SPEED = ("bank_training", "what_it_costs")  # executed alone, on all cores, after the others
# Made-up shoppers are labelled by k-means, where near ties depend on rounding, and OpenBLAS rounds by the instructions
# that it uses. The kept audits of made-up shoppers in results/laptop were made with those for AVX2.
OPENBLAS = {"OPENBLAS_CORETYPE": "Haswell"} if platform.machine() in ("x86_64", "AMD64") else {}


class Job(NamedTuple):
    """A notebook to execute, its parameters, and the digest of what it is made from."""

    name: str
    parameters: dict[str, object]
    made_from: str
    timeout: int | None  # seconds a cell may take

    @property
    def target(self) -> Path:
        return EXECUTED / f"{self.name}.ipynb"


def execute(job: Job, progress: bool) -> None:
    """Execute one notebook, in the working directory."""
    copies.prepare(SOURCES / f"{job.name}.ipynb", job.target)
    executed = papermill.execute_notebook(
        job.target,
        job.target,
        parameters=job.parameters,
        execution_timeout=job.timeout,
        start_timeout=START,
        iopub_timeout=LATE,
        progress_bar={"desc": job.name, "unit": "cell"} if progress else False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    executed.metadata[copies.KEY] = job.made_from
    nbformat.write(executed, job.target)


def attempt(job: Job, progress: bool) -> tuple[float, str]:
    """Execute one notebook: its seconds, and the error that stopped it or ""."""
    begin = time.monotonic()
    try:
        execute(job, progress)
    except papermill.PapermillExecutionError as error:
        print(error, file=sys.stderr, flush=True)
        return time.monotonic() - begin, f"{error.ename}: {error.evalue}".splitlines()[0]
    except Exception as error:  # a kernel that died, a cell that hangs
        print(f"{job.name}: {error}", file=sys.stderr, flush=True)
        return time.monotonic() - begin, f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        ensure_event_loop().close()  # that of this thread
    return time.monotonic() - begin, ""


def run_all(jobs: list[Job], at_once: int) -> Iterator[tuple[str, float, str]]:
    """Execute so many notebooks at a time; those that measure speed alone, after the others."""
    alone = [job for job in jobs if job.name in MEASURE_SPEED or at_once == 1]
    beside = sorted((job for job in jobs if job not in alone), key=lambda job: job.name not in LONGEST)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    for some, workers in ((beside, at_once), (alone, 1)):
        os.environ["OMP_NUM_THREADS"] = threads or str(max(1, (os.cpu_count() or 1) // workers))
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(attempt, job, workers == 1): job.name for job in some}
            try:
                for future in as_completed(futures):
                    yield futures[future], *future.result()
            except KeyboardInterrupt:
                print("stopped; the same command continues", file=sys.stderr, flush=True)
                os._exit(1)  # kernels end with this process; waiting for the threads would wait for their cells


def table_of(path: Path) -> str:
    """The plain text that the cells tagged `table` show."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if "table" in cell.metadata.get("tags", [])]
    shown = [output.get("data", {}).get("text/plain", "") for cell in cells for output in cell.outputs]
    return "\n".join(filter(None, shown))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; by default all that the preset has")
    parser.add_argument("--preset", default="quick")
    changed = {"metavar": ("NAME", "VALUE"), "help": "a parameter of these notebooks; VALUE is YAML"}
    parser.add_argument("-p", "--parameter", nargs=2, action="append", default=[], **changed)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--results", type=Path, help="folder to keep audits in, to continue and to read again")
    parser.add_argument("--show", action="store_true", help="print what the notebooks' tables say")
    parser.add_argument("--all", action="store_true", help="execute also what is unchanged since it was executed")
    return parser.parse_args()


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """The notebooks to execute, with what the preset, -p, --device and --results change of their parameters."""
    changes = presets.sections(SOURCES, asked.preset)
    everything = [path.stem for path in sorted(SOURCES.glob("*.ipynb"))]
    of_preset = everything if asked.preset in ALL_NOTEBOOKS else sorted(changes)
    typed = {name: yaml.safe_load(value) for name, value in asked.parameter}
    jobs = []
    for name in asked.notebooks or of_preset:
        given = changes.get(name, {}) | presets.checked(SOURCES, name, typed, "-p")
        own = presets.defaults(SOURCES / f"{name}.ipynb")
        if asked.device != "auto" and "device" in own:
            given["device"] = asked.device
        if asked.results is not None and "results" in own:
            given["results"] = os.fspath((asked.results / name).resolve())
        digest = copies.made_from(SOURCES / f"{name}.ipynb", given, asked.device)
        jobs.append(Job(name, given, digest, QUICK_CELL if asked.preset == "quick" else None))
    return jobs


def main() -> int:
    asked = options()
    for name, value in OPENBLAS.items():
        os.environ.setdefault(name, value)
    try:
        jobs = jobs_of(asked)
    except (ValueError, yaml.YAMLError) as error:
        raise SystemExit(str(error)) from None
    again = asked.results is not None or asked.all
    changed = [job for job in jobs if again or not copies.is_made_from(job.target, job.made_from)]
    errors: dict[str, str] = {}
    results = run_all(changed, AT_ONCE if asked.results is None and len(changed) > 1 else 1)
    # Notebooks run from their folder, as in JupyterLab. It is the process's: were papermill asked for it, one thread
    # would leave it while another's kernel starts.
    with chdir(SOURCES):
        for count, (name, seconds, error) in enumerate(results, start=1):
            errors[name] = error
            what = "failed" if error else "ran"
            print(f"[{count:>2}/{len(changed)}] {name:24}{what:8}{seconds:6,.0f} s  {error}".rstrip(), flush=True)
            if "store holds another audit" in error:
                print("    give --results another folder (`make rerun RESULTS=results/mine`), or the same parameters")
    for job in jobs:
        if asked.show and not errors.get(job.name):
            print(f"\n{table_of(job.target)}\n")
    print(f"{len(jobs) - len(changed)} unchanged; executed notebooks are in _build/executed/")
    failed = {name: error for name, error in errors.items() if error}
    for name, error in failed.items():  # last, where they are looked for
        print(f"failed: {name}: {error}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
