"""Build the sdist and the wheel into dist/, from the files that git tracks, and check what the package index would say.

On the package index relative links of the README lead nowhere: where the repository's address is known
(`repository.url` in _config.yml, or REPOSITORY_URL), they are made absolute.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book"))
from build import repository_url  # noqa: E402

DIST = ROOT / "dist"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def with_absolute_links(readme: str, url: str) -> str:
    """The README with its links to files made links to the repository, and its pictures to their raw files."""
    return LINK.sub(lambda link: f"{link[1]}[{link[2]}]({url}/{'raw' if link[1] else 'blob'}/main/{link[3]})", readme)


def packaged(wheel: Path) -> set[str]:
    """The files of the package in a wheel."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dpsub/")}


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    tracked = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in tracked:
            if not name.startswith(("results/", "notebooks/", "studies/", "tests/", "book/")):
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, Path(folder) / name)
        url = repository_url(yaml.safe_load((ROOT / "_config.yml").read_text()))
        if url:
            readme = Path(folder) / "README.md"
            readme.write_text(with_absolute_links(readme.read_text(), url))
        subprocess.run([sys.executable, "-m", "build", "--outdir", DIST, folder], check=True)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir()], check=True)
    (wheel,) = DIST.glob("*.whl")
    missing = {name for name in tracked if name.startswith("dpsub/")} - packaged(wheel)
    if missing:
        print(f"{wheel.name} lacks {sorted(missing)}: see package-data in pyproject.toml", file=sys.stderr)
        return 1
    if not url:
        print("the README's links are relative, since repository.url in _config.yml is empty")
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:,.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
