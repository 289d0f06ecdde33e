import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
import trainings_of_others as others
from dask_jobqueue import SLURMCluster
from distributed import Client, LocalCluster
from torch import nn

from dpsub import DPSGD, audit, audit_training, audits, crafters, data, models
from dpsub.audits import executors, many_runs, plans
from dpsub.trainers import devices

ROOT = Path(__file__).parents[2]
SPEC = DPSGD(noise_multiplier=10.0, max_grad_norm=2.0, sample_rate=0.5, steps=20, learning_rate=0.01)
LOCAL = {"protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=50)


@pytest.fixture(scope="module")
def arguments(task):
    model = models.linear(task)
    return task, model, crafters.gradient(task, model, SPEC, seed=0), SPEC


@pytest.fixture(scope="module")
def client():
    """Two workers of two threads, in this process."""
    with LocalCluster(n_workers=2, threads_per_worker=2, processes=False, **LOCAL) as cluster:
        cluster.wait_for_workers(2)  # distributed does not expect news of workers while a client connects
        with Client(cluster) as client:
            yield client


def stored(store):
    """How many models a store holds, which may not be there yet."""
    with suppress(ValueError):
        return audits.status(store).stored
    return 0


OPTIONS = {"runs": 700, "repeats": 2, "observe_every": 10, "device": "cpu", "progress": False}


def test_workers_find_the_same_numbers(arguments, client, store, monkeypatch):
    expected = audit(*arguments, **OPTIONS)
    assert audit(*arguments, client=client, **OPTIONS).equals(expected)
    with monkeypatch.context() as patch:
        patch.setattr("distributed.client._global_clients", {})  # nobody's default
        patch.setattr("distributed.client._current_client", ContextVar("none", default=None))
        address = client.scheduler.address
        assert audit(*arguments, client=address, store=store, **OPTIONS).equals(expected)
    status = audits.status(store)
    assert status.complete
    assert status.device == "cpu"


def test_workers_find_the_same_trainings_of_others(client, store):
    options = {"runs": 60, "adjacency": "substitute", "name": "two scores", "steps": others.STEPS, "progress": False}
    expected = audit_training(others.two_scores, **options)
    assert audit_training(others.two_scores, client=client, store=store, **options).equals(expected)


def test_precision_of_workers_in_one_process_is_put_back_when_the_last_is_done(arguments, client):
    before = torch.backends.mkldnn.matmul.fp32_precision
    found = [
        audit(*arguments, client=client, matmul_precision=precision, **{**OPTIONS, "runs": 300})
        for precision in ("highest", "medium")
    ]
    assert found[0].bit.equals(found[1].bit)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_workers_train_blocks_in_the_same_groups(arguments, client, monkeypatch):
    monkeypatch.setattr(many_runs, "blocks_together", lambda model, device: 4)
    here, there = (audit(*arguments, **where, **OPTIONS) for where in ({}, {"client": client}))
    assert here.score.equals(there.score)
    assert here.bit.equals(there.bit)


def test_errors_of_workers_are_the_errors_of_the_audit(arguments, client, store, monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='device "cuda" was asked for, but torch finds no CUDA device'):
            audit(*arguments, client=client, **{**OPTIONS, "device": "cuda"})
    monkeypatch.setattr(devices, "free_bytes", lambda device: 1)
    with pytest.raises(ValueError, match="model and task must fit the memory: a block of 128 models"):
        audit(*arguments, client=client, store=store, **OPTIONS)
    monkeypatch.undo()
    audit(*arguments, client=client, store=store, **OPTIONS)
    assert stored(store) == 1_400


def test_an_audit_that_ends_early_leaves_no_work_to_the_workers(client, tmp_path, monkeypatch):
    def slow(plan, group, device):
        time.sleep(0.3)
        (tmp_path / str(*(shard.number for shard in group))).touch()
        return group, plans.made_on(torch.device("cpu"))

    monkeypatch.setattr(executors, "_on_worker", slow)
    cut = plans.Cut(60)
    plan = SimpleNamespace(units=len, together=lambda device: 1, cut=cut)
    done = executors.by_workers(client, "cpu", plan, cut.shards, lambda units: None)
    next(done)
    done.close()
    began = len(list(tmp_path.iterdir()))
    time.sleep(1.5)
    assert len(list(tmp_path.iterdir())) <= began + 8, "those that four threads were at, and no others"


def test_workers_of_several_kinds_are_refused(arguments, client, monkeypatch):
    here, several = plans.made_on(torch.device("cpu")), iter(range(10**6))
    monkeypatch.setattr(plans, "made_on", lambda *_: here._replace(device=f"GPU {next(several) % 2}"))
    with pytest.raises(ValueError, match=r"(?s)device and versions must be.*device: GPU \d, now GPU \d.*allow_mix"):
        audit(*arguments, client=client, **OPTIONS)
    mixed = audit(*arguments, client=client, allow_mix=True, **OPTIONS)
    assert mixed.attrs["device"] == "GPU 0 + GPU 1"


def test_a_cluster_that_does_not_answer_is_named(arguments, store, monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE", 0.3)
    with pytest.raises(OSError, match=r"Timed out trying to connect to tcp://127\.0\.0\.1:1"):
        audit(*arguments, client="tcp://127.0.0.1:1", store=store, **OPTIONS)
    with LocalCluster(n_workers=0, processes=False, **LOCAL) as workers, Client(workers) as closed:
        pass
    with pytest.raises(Exception, match="Client is closed"):
        audit(*arguments, client=closed, store=store, **OPTIONS)
    assert stored(store) == 0


def test_workers_that_come_late_are_waited_for(arguments):
    with LocalCluster(n_workers=0, processes=False, **LOCAL) as cluster, Client(cluster) as client:
        threading.Timer(0.2, cluster.scale, (1,)).start()
        found = audit(*arguments, client=client, **OPTIONS)
    assert found.sizes["run"] == 700


def slurm_cluster(size):
    """The cluster that the book's page makes, with fewer cores."""
    cells = nbformat.read(ROOT / "notebooks/rerunning.ipynb", as_version=4).cells
    (source,) = [cell.source for cell in cells if "slurm" in cell.metadata.get("tags", [])]
    source = source.replace("cores=16", f"cores={size}").replace("processes=16", f"processes={size}")
    made = {"SLURMCluster": SLURMCluster, "re": re, "sys": sys, "scheduler_host": "127.0.0.1"}
    exec(source, made)
    return made["slurm"]


def test_the_job_that_slurm_runs_asks_for_what_it_uses(capsys):
    with slurm_cluster(16) as slurm:
        script = slurm.job_script()
    for line in ("-J dpsub", "-n 1", "--cpus-per-task=16", "--mem=60G", "-t 04:00:00"):
        assert f"#SBATCH {line}\n" in script
    assert f"{sys.executable} -m distributed.cli.dask_worker tcp://127.0.0.1:" in script
    assert "--nthreads 1" in script
    assert "--nworkers 16" in script
    assert "python -m distributed.cli.dask_worker" in capsys.readouterr().out


@pytest.mark.slow
def test_the_job_that_slurm_runs_starts_workers_that_find_the_same_numbers(arguments, store, tmp_path):
    """The script is run here as SLURM would run it there."""
    with slurm_cluster(2) as slurm, Client(slurm) as client:
        (tmp_path / "job.sh").write_text(slurm.job_script())
        job = subprocess.Popen(["bash", tmp_path / "job.sh"], start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            client.wait_for_workers(2, timeout=60)
            assert all(worker["nthreads"] == 1 for worker in client.scheduler_info()["workers"].values())
            found = audit(*arguments, client=client, store=store, **OPTIONS)
        finally:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait()
    assert found.equals(audit(*arguments, **OPTIONS))


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_shards_and_nothing_else(arguments, store):
    options = {**OPTIONS, "runs": 5_000}
    expected = audit(*arguments, **options)
    with LocalCluster(n_workers=2, threads_per_worker=1, **LOCAL) as cluster, Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))

        def kill():
            while stored(store) < 20 * 128:
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        found = audit(*arguments, client=client, store=store, **options)
        killer.join()
        assert victim not in client.run(os.getpid).values()
    assert found.equals(expected)
    assert not audits.status(store).damaged


@pytest.mark.slow
def test_processes_train_what_no_file_has_and_count_its_failures():
    def train(bit, seed):
        return others.fails_at_times(bit, seed)

    options = {"runs": 60, "adjacency": "substitute", "name": "two scores", "steps": others.STEPS, "progress": False}
    with pytest.warns(UserWarning, match="runs failed"):
        expected = audit_training(train, **options)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **LOCAL) as cluster,
        Client(cluster) as client,
        pytest.warns(UserWarning, match="runs failed"),
    ):
        assert audit_training(train, client=client, **options).equals(expected)


@pytest.mark.slow
def test_workers_train_modules_as_this_process_does(task, store):
    module = nn.Sequential(nn.Linear(task.x_train.shape[1], 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 10))
    model = models.from_module(module, task, start="fresh")
    arguments = task, model, crafters.mislabeled(task, model, SPEC, seed=0), SPEC
    with LocalCluster(n_workers=2, threads_per_worker=1, **LOCAL) as cluster, Client(cluster) as client:
        found = audit(*arguments, client=client, store=store, **OPTIONS)
    assert found.equals(audit(*arguments, **OPTIONS))


@pytest.mark.slow
def test_a_scheduler_that_dies_is_named_and_the_store_goes_on(arguments, store, tmp_path):
    options = {**OPTIONS, "runs": 5_000}
    programs = []

    def start(program, *arguments):
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments]
        programs.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return programs[-1]

    file = tmp_path / "scheduler.json"
    try:
        scheduler = start("scheduler", "--scheduler-file", file, "--port", "0", "--no-dashboard", "--host", "127.0.0.1")
        start("worker", "--scheduler-file", file, "--nthreads", "2", "--no-dashboard", "--death-timeout", "20")

        def kill():
            while stored(store) < 10 * 128:
                time.sleep(0.01)
            scheduler.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with Client(scheduler_file=str(file)) as client:
            with pytest.raises((CancelledError, OSError)):  # as dask loses its connection
                audit(*arguments, client=client, store=store, **options)
            killer.join()
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert 0 < stored(store) < 10_000
    assert audit(*arguments, store=store, **options).equals(audit(*arguments, **options))
