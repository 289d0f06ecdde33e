"""The site's configuration: `_config.yml`, and what depends on the address of the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

VARIABLE = "REPOSITORY_URL"
ON_GITHUB = re.compile(r"https://github\.com/[^/\s]+/[^/\s]+")


def repository_url(config: dict[str, Any]) -> str:
    """The repository's address: the environment's REPOSITORY_URL, else `repository.url`; "" if neither is set."""
    url = str(os.environ.get(VARIABLE) or config["repository"]["url"]).removesuffix("/").removesuffix(".git")
    if url and not ON_GITHUB.fullmatch(url):
        raise ValueError(
            f"repository.url in _config.yml, or {VARIABLE}, must be like https://github.com/OWNER/NAME, got {url!r}: "
            "Binder and Colab open notebooks from GitHub; leave it empty for a site without launch buttons"
        )
    return url


def site_config(path: Path) -> dict[str, Any]:
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
