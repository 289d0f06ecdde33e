"""Build the book from executed notebooks, after checking that they are what they claim to be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import claims
import copies
import joining
import nbformat
import slim
import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES, EXECUTED = ROOT / "notebooks", ROOT / "_build" / "executed"
STAGED, SITE = ROOT / "_build" / "src", ROOT / "_build" / "html"
CONFIG = ROOT / "_build" / "_config.yml"
REPOSITORY = "REPOSITORY_URL"  # the environment's variable
ON_GITHUB = re.compile(r"https://github\.com/[^/\s]+/[^/\s]+")


def repository_url(config: dict[str, Any]) -> str:
    """The repository's address: the environment's REPOSITORY_URL, else `repository.url`; "" if neither is set."""
    url = str(os.environ.get(REPOSITORY) or config["repository"]["url"]).removesuffix("/").removesuffix(".git")
    if url and not ON_GITHUB.fullmatch(url):
        raise ValueError(
            f"repository.url in _config.yml, or {REPOSITORY}, must be like https://github.com/OWNER/NAME, got {url!r}: "
            "Binder and Colab open notebooks from GitHub; leave it empty for a site without launch buttons"
        )
    return url


def site_config(path: Path = ROOT / "_config.yml") -> dict[str, Any]:
    """The configuration to build with: launch and repository buttons only where their links lead somewhere."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    url = repository_url(config)
    config["repository"]["url"] = url
    config["html"]["use_repository_button"] = bool(url)
    if not url:
        del config["repository"]
        for service in ("binderhub_url", "colab_url"):
            del config["launch_buttons"][service]
    return config


def stage() -> None:
    """A tree that mirrors the repository, so that links to sources point at the sources."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "book", STAGED / "book", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (STAGED / "book" / "_static").rename(STAGED / "_static")
    (STAGED / "notebooks").mkdir()
    for path in sorted(SOURCES.glob("*.ipynb")):
        executed = EXECUTED / path.name
        if not executed.exists():
            raise copies.NotReady(
                f"{path.stem}: not executed yet: run `make notebooks`, or `make rerun PRESET=...` for all notebooks"
            )
        copy = nbformat.read(executed, as_version=4)
        copies.check(copy, nbformat.read(path, as_version=4), path.stem)
        nbformat.write(copies.as_page(copy, path.stem), STAGED / "notebooks" / path.name)
    claims.stage(STAGED)
    joining.stage(STAGED, site_config().get("repository", {}))


def main() -> int:
    try:
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(yaml.safe_dump(site_config(), sort_keys=False))
        stage()
    except (copies.NotReady, ValueError) as error:
        print(f"the book was not built: {error}", file=sys.stderr)
        return 1
    path = os.pathsep.join(filter(None, [str(ROOT / "book"), str(ROOT), os.environ.get("PYTHONPATH")]))
    built = subprocess.run(
        [Path(sys.executable).with_name("jupyter-book"), "build", STAGED, "--config", CONFIG,
         "--toc", ROOT / "book" / "_toc.yml", "--path-output", ROOT, "-W", "-n", "--keep-going"],
        env={**os.environ, "PYTHONPATH": path},  # with the Sphinx extensions
        check=False,
    )  # fmt: skip
    if built.returncode == 0:
        slim.slim(SITE, SOURCES)
    return built.returncode


if __name__ == "__main__":
    raise SystemExit(main())
