"""What is published: the site's buttons, the README on the package index, and the workflows that do it."""

import importlib.util
import re
from pathlib import Path

import build
import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
URL = "https://github.com/someone/dpsub"


def from_ci(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configured(tmp_path, url):
    path = tmp_path / "_config.yml"
    path.write_text((ROOT / "_config.yml").read_text().replace('url: ""', f'url: "{url}"'))
    return build.site_config(path)


def test_without_a_repository_there_are_no_buttons_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    config = configured(tmp_path, "")
    assert "repository" not in config
    assert not {"binderhub_url", "colab_url"} & set(config["launch_buttons"])
    assert config["html"]["use_repository_button"] is False


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}.git"])
def test_one_variable_turns_the_buttons_on(tmp_path, monkeypatch, url):
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    config = configured(tmp_path, url)
    assert config["repository"]["url"] == URL
    assert config["launch_buttons"]["binderhub_url"] == "https://mybinder.org"
    assert config["launch_buttons"]["colab_url"] == "https://colab.research.google.com"
    assert config["html"]["use_repository_button"] is True
    monkeypatch.setenv("REPOSITORY_URL", URL)
    assert configured(tmp_path, "https://github.com/another/one")["repository"]["url"] == URL


def test_an_address_that_binder_cannot_open_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    with pytest.raises(ValueError, match="must be like https://github.com/OWNER/NAME, got 'https://example.org/dpsub'"):
        configured(tmp_path, "https://example.org/dpsub")


def test_the_readme_of_the_package_index_has_no_relative_link():
    readme = from_ci("dist").with_absolute_links((ROOT / "README.md").read_text(), URL)
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert targets
    assert all(target.startswith(("https://", "http://", "#")) for target in targets)
    assert f"]({URL}/raw/main/book/images/quickstart.svg)" in readme
    assert f"]({URL}/blob/main/notebooks/quickstart.ipynb)" in readme


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_commands_that_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    for command in commands:
        if command.startswith("make "):
            words = re.sub(r"\S+=(\$\{\{.*?\}\}|\S+)", "", command).split()[1:]
            assert words
            assert set(words) <= targets
        elif command.startswith("bash "):
            assert (ROOT / command.split()[1]).is_file()
    for job in jobs:
        assert set(job.get("needs", "").split()) <= set(yaml.safe_load(path.read_text())["jobs"])


def test_only_the_steps_that_publish_may_write():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        writing = {name for name, job in workflow["jobs"].items() if "write" in str(job.get("permissions", ""))}
        assert writing <= {"publish"}
