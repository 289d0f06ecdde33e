"""Execute the notebooks with papermill, each with the parameters of a preset, and say what came of each.

run.py [NOTEBOOK ...] [--preset quick|laptop|paper|YOURS] [--device auto|cpu|cuda] [--results FOLDER] [--show]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import inline
import nbformat
import papermill
import presets

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "_build" / "executed"
QUICK_CELL = 900  # seconds: a cell that takes longer in the quick preset hangs


class Outcome(NamedTuple):
    """What came of one notebook: it ran, or all its audits were there to be read, or it failed."""

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


def execute(name: str, preset: str, device: str, results: Path | None) -> None:
    """Execute one notebook, from its folder as JupyterLab does, into _build/executed; what it raises is passed on."""
    target = EXECUTED / f"{name}.ipynb"
    inline.prepare(SOURCES / f"{name}.ipynb", target)
    papermill.execute_notebook(
        target,
        target,
        parameters=parameters(name, preset, device, results),
        cwd=SOURCES,
        execution_timeout=QUICK_CELL if preset == "quick" else None,
        progress_bar={"desc": name, "unit": "cell"},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )


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


def rerun(name: str, preset: str, device: str, results: Path | None) -> Outcome:
    """Execute one notebook; what it raises is shown, and the next one can still run."""
    before = stored_models(results / name) if results else 0
    begin, error = time.monotonic(), ""
    try:
        execute(name, preset, device, results)
    except papermill.PapermillExecutionError as raised:
        print(raised, file=sys.stderr)
        error = f"{raised.ename}: {raised.evalue}".splitlines()[0]
    except KeyboardInterrupt:
        error = "KeyboardInterrupt"
    if results:
        pack_finished(results / name)
    after = stored_models(results / name) if results else 0
    what = "read" if after and after == before else "ran"
    if error:
        what = "stopped" if error.startswith("KeyboardInterrupt") else "failed"
    return Outcome(what, time.monotonic() - begin, after - before, before, error)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; by default all that the preset has")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--results", type=Path, help="folder to keep audits in, to go on with and to read again")
    parser.add_argument("--show", action="store_true", help="print what the notebooks' tables say")
    arguments = parser.parse_args()
    names = arguments.notebooks or preset_names(arguments.preset)
    for name in names:
        if not (SOURCES / f"{name}.ipynb").exists():
            raise SystemExit(f"there is no notebook {name!r} in {SOURCES.relative_to(ROOT)}/")
        parameters(name, arguments.preset, arguments.device, arguments.results)
    try:
        device, commit = machine(arguments.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None

    outcomes: dict[str, Outcome] = {}
    for name in names:
        outcomes[name] = rerun(name, arguments.preset, arguments.device, arguments.results)
        if arguments.results:
            keep(outcomes[name], name, arguments.results, device, commit)
        if outcomes[name].what == "stopped":
            break
        if arguments.show and not outcomes[name].error:
            print(f"\n{tagged_text(EXECUTED / f'{name}.ipynb', 'table')}\n")

    total = sum(outcome.seconds for outcome in outcomes.values())
    if len(outcomes) < len(names) or outcomes[names[-1]].what == "stopped":
        print("stopped; the same command goes on from the models that are stored", file=sys.stderr)
    print(f"\n{arguments.preset} on {device}, commit {commit}: {total:,.0f} s; executed notebooks in _build/executed/")
    for name, outcome in outcomes.items():
        models = f"{outcome.trained:>8,} models trained, {outcome.read:>8,} read" if arguments.results else ""
        print(f"  {name:24}{outcome.what:8}{outcome.seconds:6,.0f} s  {models}  {outcome.error}".rstrip())
        if outcome.error and outcome.read:
            folder = os.fspath(arguments.results / name)
            print(f"    the {outcome.read:,} models in {folder} stay; dpsub.audits.load_all({folder!r}) reads them")
    return int(len(outcomes) < len(names) or any(outcome.error for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
