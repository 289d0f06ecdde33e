"""What results were computed with: the versions of libraries, and the commit of the sources."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from dpsub._version import __version__

PACKAGE = Path(__file__).parent.parent


@cache
def versions(*libraries: str) -> dict[str, str]:
    """Versions of Python, dpsub, NumPy, SciPy and the named libraries."""
    own = {"python": platform.python_version(), "dpsub": __version__}
    return own | {name: metadata.version(name) for name in ("numpy", "scipy", *libraries)}


@cache
def commit() -> str:
    """The commit of dpsub's sources if they are a git checkout, with "+changes" if any of them differ from it."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=False)

    try:
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return "not a checkout"
        changed = git("diff", "--quiet", "HEAD", "--", ".").returncode
        return git("rev-parse", "--short=12", "HEAD").stdout.strip() + ("+changes" if changed else "")
    except OSError:
        return "no git"
