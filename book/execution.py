"""Execute notebooks with papermill: one, or several at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

import inline
import made_from
import papermill


class Job(NamedTuple):
    """A notebook to execute, and where its executed copy goes."""

    source: Path
    target: Path
    parameters: dict[str, object]
    made_from: dict[str, str]
    timeout: int | None = None  # seconds a cell may take
    progress: bool = True

    @property
    def name(self) -> str:
        return self.source.stem


class Done(NamedTuple):
    """How long an execution took, and what it raised: "" if nothing."""

    seconds: float
    error: str


def execute(job: Job) -> None:
    """Execute one notebook, from its folder as JupyterLab does; what it raises is passed on."""
    inline.prepare(job.source, job.target)
    executed = papermill.execute_notebook(
        job.target,
        job.target,
        parameters=job.parameters,
        cwd=job.source.parent,
        execution_timeout=job.timeout,
        progress_bar={"desc": job.name, "unit": "cell"} if job.progress else False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    made_from.mark(job.target, executed, job.made_from)


def attempt(job: Job) -> Done:
    """Execute one notebook; what it raises is shown and told, so that the next one can still run."""
    begin, error = time.monotonic(), ""
    try:
        execute(job)
    except papermill.PapermillExecutionError as raised:
        print(raised, file=sys.stderr, flush=True)
        error = f"{raised.ename}: {raised.evalue}".splitlines()[0]
    except KeyboardInterrupt:
        error = "KeyboardInterrupt"
    except Exception as raised:  # a kernel that died, a cell that hangs
        print(f"{job.name}: {raised}", file=sys.stderr, flush=True)
        error = (f"{type(raised).__name__}: {raised}".splitlines() or [""])[0]
    return Done(time.monotonic() - begin, error)


def side_by_side(jobs: list[Job], at_once: int, threads: int) -> Iterator[tuple[str, Done]]:
    """Execute so many notebooks at a time, each on so many threads; each is told when it is done.

    An interrupt stops all of them.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_prepare_worker, initargs=(threads,))
    try:
        waiting = {pool.submit(attempt, job): job.name for job in jobs}
        for done in as_completed(waiting):
            try:
                yield waiting[done], done.result()
            except BrokenProcessPool:
                yield waiting[done], Done(0.0, "the process that executed notebooks was killed; is the memory full?")
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _prepare_worker(threads: int) -> None:
    """A kernel inherits the threads; the process that started this one passes an interrupt on by ending it."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
