import subprocess

import pytest

from dpsub import DPSGD, audit, crafters, data, models
from dpsub.audits.store import Database

SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=1.0, steps=4, learning_rate=0.01)
OPTIONS = {"runs": 300, "observe_every": 2, "seed": 3, "device": "cpu", "progress": False}  # three blocks


@pytest.fixture(scope="session")
def spec():
    return SPEC


@pytest.fixture(scope="session")
def task():
    return data.digits(n_train=30)


@pytest.fixture(scope="session")
def model(task):
    return models.linear(task)


@pytest.fixture(scope="session")
def canary(task, model, spec):
    return crafters.gradient(task, model, spec, seed=0)


@pytest.fixture(scope="session")
def expected(task, model, canary, spec):
    """What `run` finds with the usual arguments."""
    return audit(task, model, canary, spec, **OPTIONS)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "audit.db"


@pytest.fixture
def run(task, model, canary, spec, store):
    """An audit into one store; what is given takes the place of the usual arguments."""

    def call(store=store, task=task, model=model, canary=canary, spec=spec, **options):
        return audit(task, model, canary, spec, store=store, **{**OPTIONS, **options})

    return call


@pytest.fixture
def forbid_training(monkeypatch):
    """From the call on, whatever trains fails."""
    return lambda: monkeypatch.setattr("dpsub.audits.bank_plans.assemble", None)


@pytest.fixture(scope="session")
def flip():
    """Changes one bit of a file."""

    def change(path, at):
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 1 << (at % 8)
        path.write_bytes(content)

    return change


class Killed(BaseException):
    """The process is no more."""


@pytest.fixture
def killed_after():
    """Lets the process end, as it were, once so many shards are written."""

    def begin(call, shards, error=Killed):
        write, written = Database.write, []

        def dying(self, *arguments):
            if len(written) == shards:
                raise error
            write(self, *arguments)
            written.append(arguments[0].number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "write", dying)
            with pytest.raises(error) as ended:
                call()
        return ended

    return begin


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)
