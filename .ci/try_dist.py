"""Install the sdist and the wheel of dist/, each into a fresh environment, and run the tests of the rooms there.

try_dist.py [lowest|newest] [REQUIREMENT ...]: with the lowest or the newest versions of what dpsub needs. A requirement
(`torch==2.13.0`) takes the place of the version that would be chosen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("_core", "accounting", "data", "estimators", "figures", "models", "opacus", "trainers", "crafters", "audits")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pyyaml", "nbformat", "ipywidgets")
SHOWN = """
import dpsub
from dpsub import accounting
assert dpsub.__file__.startswith({folder!r}), dpsub.__file__
mechanism = dict(noise_multiplier=1.0, sample_rate=0.01, steps=1_000, delta=1e-5)
for adjacency in ("add_remove", "substitute"):
    print(adjacency, round(accounting.epsilon(**mechanism, adjacency=adjacency), 2))
"""


def lowest(folder: Path, fixed: list[str]) -> list[str]:
    """Constraints: the lowest version of each direct dependency that the resolver can combine."""
    subprocess.run([folder / "bin/pip", "install", "--quiet", "uv"], check=True)
    override = folder / "fixed.txt"
    override.write_text("\n".join(fixed))
    made = subprocess.run(
        [folder / "bin/uv", "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--override", override,
         "--extra", "cluster", "--python", folder / "bin/python", "--no-header", "--no-annotate",
         "--emit-index-url", ROOT / "pyproject.toml"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    names = {re.split(r"[=<>~]", requirement)[0] for requirement in fixed}
    return [line for line in made.stdout.splitlines() if re.split(r"[=<>~]", line)[0] not in names and "==" in line]


def run(file: Path, versions: str, fixed: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        venv.create(folder, with_pip=True)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(lowest(folder, fixed) if versions == "lowest" else []))
        subprocess.run(
            [folder / "bin/pip", "install", "--quiet", "--constraint", constraints, f"{file}[cluster]", *TOOLS, *fixed],
            check=True,
        )
        subprocess.run([folder / "bin/python", "-c", SHOWN.format(folder=str(folder))], check=True, cwd=folder)
        training = ["--noise-multiplier", ".8", "--batch-size", "256", "--records", "25000", "--epochs", "8"]
        subprocess.run([folder / "bin/dpsub", "epsilon", *training, "--delta", "1e-5"], check=True, cwd=folder)
        tests = folder / "tree"
        tests.mkdir()
        kept = ("tests", "book", "notebooks", "results", "README.md", "pyproject.toml", "CHANGELOG.md")
        archive = subprocess.run(["git", "archive", "HEAD", *kept], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], input=archive, cwd=tests, check=True)
        subprocess.run(
            [folder / "bin/pytest", "-n", "2", "-p", "no:cacheprovider", "-W", "default", "-o", "addopts=-q",
             "-m", "not slow and not gpu and not book", *(f"tests/{room}" for room in ROOMS)],
            check=True, cwd=tests, env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip


def main() -> int:
    versions, *fixed = sys.argv[1:] or ["newest"]
    if versions not in ("lowest", "newest"):
        raise SystemExit(f"versions must be lowest or newest, got {versions!r}")
    files = sorted([*(ROOT / "dist").glob("*.whl"), *(ROOT / "dist").glob("*.tar.gz")])
    if len(files) != 2:
        raise SystemExit(f"dist/ must hold one wheel and one sdist, got {[file.name for file in files]}: run make dist")
    for file in files:
        print(f"{file.name}, {versions} versions", flush=True)
        run(file, versions, fixed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
