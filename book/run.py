"""Execute the notebooks with papermill, each with the parameters of a preset.

run.py [NOTEBOOK ...] [--preset quick|paper] [--show]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nbformat
import papermill
import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
EXECUTED = ROOT / "_build" / "executed"
QUICK_CELL = 900  # seconds: a cell that takes longer in the quick preset hangs


def parameters(name: str, preset: str) -> dict[str, object]:
    """What a preset changes of the notebook's own defaults."""
    path = SOURCES / "params" / preset / f"{name}.yaml"
    if not path.exists():
        presets = sorted(p.name for p in (SOURCES / "params").iterdir())
        raise SystemExit(f"no parameters for {name} in the preset {preset!r}; there are {', '.join(presets)}")
    return yaml.safe_load(path.read_text()) or {}


def execute(name: str, preset: str) -> Path:
    """Execute one notebook into _build/executed; what it raises is shown and passed on."""
    target = EXECUTED / f"{name}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    papermill.execute_notebook(
        SOURCES / f"{name}.ipynb",
        target,
        parameters=parameters(name, preset),
        cwd=ROOT,
        execution_timeout=QUICK_CELL if preset == "quick" else None,
        progress_bar={"desc": name, "unit": "cell"},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    return target


def tagged_text(path: Path, tag: str) -> str:
    """The plain text that the cells with this tag show."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out for cell in cells if tag in cell.metadata.get("tags", []) for out in cell.get("outputs", [])]
    return "\n".join(out["data"]["text/plain"] for out in outputs if "text/plain" in out.get("data", {}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="names without .ipynb; all by default")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--show", action="store_true", help="print what the notebooks' tables say")
    arguments = parser.parse_args()
    names = arguments.notebooks or sorted(path.stem for path in SOURCES.glob("*.ipynb"))
    for name in names:
        if not (SOURCES / f"{name}.ipynb").exists():
            raise SystemExit(f"there is no notebook {name!r} in {SOURCES.relative_to(ROOT)}/")
        start = time.monotonic()
        try:
            target = execute(name, arguments.preset)
        except papermill.PapermillExecutionError as error:
            print(error, file=sys.stderr)
            return 1
        where = target.relative_to(ROOT)
        if arguments.show:
            print(f"\n{tagged_text(target, 'table')}\n")
        print(f"{name}: {time.monotonic() - start:.0f} s, executed notebook in {where}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
