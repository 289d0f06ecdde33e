import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import copies
import nbformat
import papermill
import presets
import pytest
from browsing import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
AUDIT = """
import numpy as np
import dpsub
x = np.random.default_rng(0).normal(size=(40, 4))
task = dpsub.data.from_arrays(x[:30], np.arange(30) % 2, x_test=x[30:], y_test=np.arange(10) % 2, num_classes=2)
model = dpsub.models.linear(task)
spec = dpsub.DPSGD(10.0, 2.0, 1.0, 5, rate)
canary = dpsub.crafters.gradient(task, model, spec, seed=0)
dpsub.audit(task, model, canary, spec, runs=runs, device=device, store=f"{results}/S2.db").sizes["run"]
"""


def preset_of(root, written, name="small"):
    (root / f"notebooks/params/{name}.yaml").write_text(written)


def write_notebook(root, name, parameters, source):
    """A notebook of a cell of parameters and a cell of code."""
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(source, metadata={"tags": ["table"]})]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), root / f"notebooks/{name}.ipynb")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """book/run.py, over notebooks of our own."""
    import run

    (tmp_path / "notebooks/params").mkdir(parents=True)
    write_notebook(
        tmp_path, "audited", "runs = 10  # models\nrate = 0.01\ndevice = 'auto'\nresults = None  # a folder", AUDIT
    )
    write_notebook(tmp_path, "fails", "runs = 10", "raise ValueError(f'runs is {runs}\\nand more')")
    write_notebook(tmp_path, "keeps_nothing", "points = 3", "print(points)")
    preset_of(tmp_path, "audited:\n  runs: 20\nfails:\n  runs: 20\n")
    monkeypatch.setattr(run, "ALL_NOTEBOOKS", ("small",))
    monkeypatch.setattr(run, "SOURCES", tmp_path / "notebooks")
    monkeypatch.setattr(run, "EXECUTED", tmp_path / "_build/executed")
    monkeypatch.setattr(copies, "distributions", list)  # reading what all packages say of themselves takes long

    def call(*arguments):
        copies.surroundings.cache_clear()
        monkeypatch.setattr(sys, "argv", ["run.py", "--preset", "small", *arguments])
        return run.main()

    return call


@pytest.mark.book
@pytest.mark.filterwarnings("default")
def test_a_rerun_goes_on_after_a_failure_and_reads_what_it_kept(run, tmp_path, capsys):
    results = tmp_path / "results"
    assert run("fails", "audited", "--results", str(results), "--device", "cpu") == 1
    shown = capsys.readouterr().out
    assert re.search(r"\[ 1/2\] fails +failed +\d+ s +ValueError: runs is 20\n", shown)
    assert re.search(r"\[ 2/2\] audited +ran +\d+ s\n", shown)
    kept = (results / "audited/S2.db").stat().st_mtime
    assert run("audited", "--results", str(results), "--device", "cpu", "--show") == 0
    assert "\n20\n" in capsys.readouterr().out
    assert (results / "audited/S2.db").stat().st_mtime == kept
    assert run("audited", "-p", "runs", "30", "--results", str(results), "--device", "cpu") == 0
    assert run("audited", "-p", "rate", "0.02", "--results", str(results), "--device", "cpu") == 1
    assert "give --results another folder (`make rerun RESULTS=results/mine`)" in capsys.readouterr().out


@pytest.fixture
def prepared(tmp_path):
    """The copy that is executed of a notebook of prose and code, alternating."""

    def prepare(*cells):
        kinds = (new_markdown_cell, new_code_cell)
        notebook = new_notebook(cells=[kinds[i % 2](cell) for i, cell in enumerate(cells)])
        notebook.metadata["kernelspec"] = KERNEL
        nbformat.write(notebook, tmp_path / "source.ipynb")
        copies.prepare(tmp_path / "source.ipynb", tmp_path / "executed.ipynb")
        return tmp_path / "executed.ipynb"

    return prepare


@pytest.mark.filterwarnings("default")
def test_expressions_are_evaluated_where_they_stand(prepared):
    def executed(*cells):
        path = prepared(*cells)
        options = {"progress_bar": False, "extra_arguments": ["--IPKernelApp.log_level=ERROR"]}
        done = papermill.execute_notebook(path, path, **options)
        return [cell.source for cell in copies.filled(done, "page").cells]

    prose = 'Of {eval}`f"{2 * a:.2f}"` and\n{eval}`f"{d[\'k\']:,}"`, {eval}`f"{2 * a:.2f}"`.'
    code = "a, d = 1.234, {'k': 12345}"
    assert executed("# Title", code, prose, "b = 1") == ["# Title", code, "Of 2.47 and\n12,345, 2.47.", "b = 1"]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (['{eval}`f"{a}"`', "a = 1"], "name 'a' is not defined"),
        (["", "a = 1", "{eval}`a`"], "`a` must give text, got 1: write it as an f-string"),
        (["", "a = 1", '{eval}`f"{a}"`', "a = 2"], "must stay what it is, got '2' after '1'"),
    ],
    ids=["too early", "no text", "assigned again"],
)
def test_an_expression_that_cannot_be_shown_fails(prepared, cells, problem):
    codes = [cell.source for cell in nbformat.read(prepared(*cells), as_version=4).cells if cell.cell_type == "code"]
    with pytest.raises((NameError, TypeError, ValueError), match=re.escape(problem)):
        exec("\n".join(codes), {})


def test_what_cannot_be_rerun_is_said_first(run, tmp_path):
    for arguments, problem in (
        (["xyz"], "no notebook is named 'xyz': there are audited, fails, keeps_nothing"),
        (["audited", "--preset", "huge"], "no preset in notebooks/params/ is named 'huge': there are small"),
        (["audited", "-p", "rums", "20"], r"-p: audited has no parameter 'rums': did you mean 'runs'\?"),
        (["audited", "-p", "runs", "many"], "-p: audited: runs must be a whole number, got 'many'"),
    ):
        with pytest.raises(SystemExit, match=problem):
            run(*arguments)
    assert not (tmp_path / "_build").exists()


NUMBERS = "runs = 10\ndelta = 1e-5\nrates = [1.0, 0.25]\nmore = []\nflag = True\nname = 'a'"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("numbers: {quite_another: 1}", "has no parameter 'quite_another': there are runs, delta, rates, more"),
        ("numbers: {runs: 20.5}", r"small.yaml: numbers: runs must be a whole number, got 20.5"),
        ("numbers: {rates: 0.5}", r"rates must be a list, such as \[1.0, 0.25\], got 0.5"),
        ("numbers: {rates: [0.5, a]}", "each of rates must be a number, got 'a'"),
        ("numbers:", "small.yaml: numbers must have lines like `runs: 100`, got None"),
        ("audit: {}", r"small.yaml: no notebook is named 'audit': did you mean 'audited'\?"),
    ],
)
def test_a_preset_is_checked_before_anything_runs(run, tmp_path, written, problem):
    write_notebook(tmp_path, "numbers", NUMBERS, "print(runs)")
    preset_of(tmp_path, written)
    with pytest.raises(SystemExit, match=problem):
        run()
    assert not (tmp_path / "_build").exists()


def test_a_preset_may_write_numbers_as_people_do_and_be_empty(run, tmp_path):
    write_notebook(tmp_path, "numbers", NUMBERS, "print(runs)")
    preset_of(tmp_path, "numbers:\n  runs: 1e3\n  delta: 1e-6\n  rates: [1, 5e-1]\n  more: [3]\n  flag: false\n")
    given = {"runs": 1000, "delta": 1e-6, "rates": [1, 0.5], "more": [3], "flag": False}
    assert presets.sections(tmp_path / "notebooks", "small") == {"numbers": given}
    preset_of(tmp_path, "# nothing\n")
    assert presets.sections(tmp_path / "notebooks", "small") == {}


@pytest.mark.filterwarnings("default")
def test_a_preset_of_ones_own_runs_the_notebooks_that_it_has_in_their_folder(run, tmp_path, capsys):
    preset_of(tmp_path, "keeps_nothing:\n  points: 4\n", "mine")
    write_notebook(tmp_path, "keeps_nothing", "points = 3", "import os; print(points, os.getcwd())")
    assert run("--preset", "mine", "-p", "points", "5") == 0
    (output,) = nbformat.read(tmp_path / "_build/executed/keeps_nothing.ipynb", as_version=4).cells[-1].outputs
    assert output.text == f"5 {tmp_path / 'notebooks'}\n"
    assert "audited" not in capsys.readouterr().out


def test_the_folder_of_notebooks_is_that_of_the_process_so_that_threads_share_it(run, tmp_path, monkeypatch):
    seen = []

    def execute(source, target, **options):
        seen.append((Path.cwd(), options.get("cwd")))
        return nbformat.read(source, as_version=4)

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    before = Path.cwd()
    assert run("audited", "keeps_nothing") == 0
    assert seen == [(tmp_path / "notebooks", None)] * 2
    assert Path.cwd() == before


@pytest.fixture
def book(run, tmp_path, monkeypatch):
    """Two notebooks and what they may use; gives the names of those that are executed again."""
    for name in ("dpsub/room.py", "studies/topic/drawn.py", "results/kept.csv"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1")
    for name in ("page", "other"):
        write_notebook(tmp_path, name, "points = 3", "print(points)")
    module = sys.modules["run"]
    executed = []

    def execute(job, progress):
        notebook = nbformat.read(tmp_path / f"notebooks/{job.name}.ipynb", as_version=4)
        notebook.metadata[copies.KEY] = job.made_from
        job.target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, job.target)
        executed.append(job.name)

    monkeypatch.setattr(module, "execute", execute)

    def ran(*arguments):
        executed.clear()
        assert run("page", "other", *arguments) == 0
        return sorted(executed)

    assert ran() == ["other", "page"]
    assert ran() == []
    return ran


def edited(path, text="changed"):
    return lambda root: (root / path).write_text(text)


def with_a_new_cell(root):
    notebook = nbformat.read(root / "notebooks/page.ipynb", as_version=4)
    notebook.cells.append(new_markdown_cell("More."))
    nbformat.write(notebook, root / "notebooks/page.ipynb")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (with_a_new_cell, ["page"]),
        (edited("notebooks/params/small.yaml", "page:\n  points: 4\n"), ["page"]),
        (edited("_build/executed/page.ipynb", '{"cells": ['), ["page"]),
        (lambda root: copies.prepare(root / "notebooks/page.ipynb", root / "_build/executed/page.ipynb"), ["page"]),
        (edited("dpsub/room.py"), ["other", "page"]),
        (edited("studies/topic/new.py"), ["other", "page"]),
        (edited("results/kept.csv"), ["other", "page"]),
        (edited("notebooks/params/paper.yaml"), []),
        (edited("notebooks/params/small.yaml", "other: {}\n"), []),
    ],
)
def test_a_notebook_runs_again_if_what_it_was_made_from_has_changed(book, tmp_path, change, again):
    change(tmp_path)
    assert book() == again
    assert book() == []


def test_all_devices_and_results_run_everything_again(book, tmp_path):
    for arguments in (["--all"], ["--device", "cpu"], ["--results", str(tmp_path / "kept")]):
        assert book(*arguments) == ["other", "page"]


@pytest.mark.book
@pytest.mark.filterwarnings("default")
def test_notebooks_run_side_by_side_and_one_that_fails_stops_no_other(run, tmp_path, capsys, monkeypatch):
    meet = """import time
from pathlib import Path
Path(f"{own}.there").touch()
for _ in range(1000):
    time.sleep(0 if Path(f"{other}.there").exists() else 0.1)
assert Path(f"{other}.there").exists()"""
    for own, other in (("keeps_nothing", "audited"), ("audited", "keeps_nothing")):
        write_notebook(tmp_path, own, "runs = 1", f"own, other = {own!r}, {other!r}\n{meet}")
    monkeypatch.setattr(sys.modules["run"], "MEASURE_SPEED", ())
    assert run() == 1
    shown = capsys.readouterr().out
    assert re.search(r"fails +failed +\d+ s +ValueError: runs is 20\n", shown)
    assert len(re.findall(r"ran +\d+ s\n", shown)) == 2


@pytest.mark.slow
def test_an_interrupt_stops_all_of_them(tmp_path):
    (tmp_path / "notebooks/params").mkdir(parents=True)
    for name in ("one", "two", "three"):
        waits = f"import os, time; open('{name}.pid', 'w').write(str(os.getpid())); time.sleep(600)"
        write_notebook(tmp_path, name, "points = 3", waits)
    preset_of(tmp_path, "{one: {}, two: {}, three: {}}")
    code = (
        "import sys; from pathlib import Path; import run; here = Path(sys.argv.pop(1));"
        "run.SOURCES, run.EXECUTED = here / 'notebooks', here / '_build/executed'; sys.exit(run.main())"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "--preset", "small"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'book'}:{ROOT}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = wait_for(lambda: [path for path in tmp_path.glob("notebooks/*.pid") if path.read_text()], 2)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "stopped; the same command continues" in errors
    kernels = [Path("/proc", path.read_text()) for path in pids]
    wait_for(lambda: [kernel for kernel in kernels if not kernel.exists()], 2)
    assert len(list(tmp_path.glob("notebooks/*.pid"))) == 2


def wait_for(found, many, seconds=120):
    """What is found, as soon as there are so many."""
    for _ in range(seconds * 5):
        if len(found()) >= many:
            return found()
        time.sleep(0.2)
    raise AssertionError(f"there are only {found()} after {seconds} s")
