import json
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

AUDIT = """
from pathlib import Path
import numpy as np
import dpsub
x = np.random.default_rng(0).normal(size=(40, 4))
task = dpsub.data.from_arrays(x[:30], np.arange(30) % 2, x_test=x[30:], y_test=np.arange(10) % 2, num_classes=2)
model = dpsub.models.linear(task)
spec = dpsub.DPSGD(10.0, 2.0, 1.0, 5, 0.01)
canary = dpsub.crafters.gradient(task, model, spec, seed=0)
store = Path(results, "S2.db") if results else None
result = dpsub.audit(task, model, canary, spec, runs=runs, device=device, store=store)
"""


def preset_of(root, written, name="small"):
    (root / f"notebooks/params/{name}.yaml").write_text(written)


def write_notebook(root, name, parameters, source):
    """A notebook of a cell of parameters and a cell of code."""
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(source, metadata={"tags": ["table"]})]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, root / f"notebooks/{name}.ipynb")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """book/run.py, over notebooks of our own."""
    import run

    (tmp_path / "notebooks/params").mkdir(parents=True)
    parameters = "runs = 10  # models\ndevice = 'auto'\nresults = None  # a folder"
    write_notebook(tmp_path, "audited", parameters, AUDIT)
    write_notebook(tmp_path, "fails", "runs = 10", "raise ValueError(f'runs is {runs}\\nand more')")
    write_notebook(tmp_path, "keeps_nothing", "points = 3", "print(points)")
    preset_of(tmp_path, "audited:\n  runs: 20\nfails:\n  runs: 20\n")
    monkeypatch.setattr(run, "ALL_NOTEBOOKS", ("small",))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "SOURCES", tmp_path / "notebooks")
    monkeypatch.setattr(run, "EXECUTED", tmp_path / "_build/executed")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["run.py", "--preset", "small", *arguments])
        return run.main()

    return call


@pytest.mark.book
@pytest.mark.filterwarnings("default")
def test_a_rerun_goes_on_after_a_failure_and_sums_up(run, tmp_path, capsys):
    results = tmp_path / "results"
    assert run("audited", "fails", "--results", str(results), "--device", "cpu") == 1
    shown = capsys.readouterr().out
    assert "small on cpu, 1 core, commit " in shown
    for line in (
        r"audited +ran +\d+ s +20 models trained, +0 read",
        r"fails +failed +\d+ s +0 models trained, +0 read +ValueError: runs is 20",
    ):
        assert re.search(line + "\n", shown), line
    runs = json.loads((results / "runs.json").read_text())
    assert runs.keys() == {"audited"}
    assert runs["audited"].items() >= {"models trained": 20, "models read": 0, "device": "cpu, 1 core"}.items()


@pytest.mark.filterwarnings("default")
def test_what_was_stopped_is_said_and_counted_when_it_goes_on(run, tmp_path, monkeypatch, capsys):
    module, results = sys.modules["run"], tmp_path / "results"
    monkeypatch.setattr(module, "machine", lambda device: ("cpu", "abc"))
    stored = iter([0, 12, 12, 20, 20, 20])
    monkeypatch.setattr(module, "stored_models", lambda folder: next(stored))

    def execute(job):
        if job.name == "audited" and not (results / "runs.json").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "execute", execute)
    monkeypatch.setattr(module.time, "monotonic", iter(range(0, 1000, 5)).__next__)
    assert run("audited", "keeps_nothing", "--results", str(results)) == 1
    told = capsys.readouterr()
    assert re.search(r"audited +stopped +5 s +12 models trained, +0 read", told.out)
    assert "stopped; the same command goes on from the models that are stored" in told.err
    assert "keeps_nothing" not in told.out
    assert run("audited", "--results", str(results)) == 0
    (kept,) = json.loads((results / "runs.json").read_text()).values()
    assert kept.items() >= {"seconds": 10, "models trained": 20, "models read": 0}.items()
    capsys.readouterr()
    assert run("audited", "--results", str(results)) == 0
    assert re.search(r"audited +read +\d+ s +0 models trained, +20 read", capsys.readouterr().out)
    assert json.loads((results / "runs.json").read_text())["audited"] == kept

    def refuse(job):
        raise ValueError("store holds another audit, S2.db:\n  runs: stored 20, asked for 30")

    monkeypatch.setattr(module, "stored_models", lambda folder: 20)
    monkeypatch.setattr(module, "execute", refuse)
    assert run("audited", "-p", "runs", "30", "--results", str(results)) == 1
    assert "give --results another folder (`make rerun RESULTS=results/mine`)" in capsys.readouterr().out


@pytest.fixture
def executed(tmp_path):
    """Execute prose and code, alternating, as `run` does."""

    def execute(*cells):
        kinds = (nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell)
        notebook = nbformat.v4.new_notebook(cells=[kinds[i % 2](cell) for i, cell in enumerate(cells)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, tmp_path / "source.ipynb")
        copies.prepare(tmp_path / "source.ipynb", tmp_path / "executed.ipynb")
        options = {"progress_bar": False, "extra_arguments": ["--IPKernelApp.log_level=ERROR"]}
        done = papermill.execute_notebook(tmp_path / "executed.ipynb", tmp_path / "executed.ipynb", **options)
        copies.check(done, notebook, "page")
        return [cell.source for cell in copies.filled(done).cells]

    return execute


@pytest.mark.filterwarnings("default")
def test_expressions_are_evaluated_where_they_stand(executed):
    prose = 'Of {eval}`f"{2 * a:.2f}"` and\n{eval}`f"{d[\'k\']:,}"`, {eval}`f"{2 * a:.2f}"`.'
    code = "a, d = 1.234, {'k': 12345}"
    assert executed("# Title", code, prose, "b = 1") == ["# Title", code, "Of 2.47 and\n12,345, 2.47.", "b = 1"]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (['{eval}`f"{a}"`', "a = 1"], "name 'a' is not defined"),
        (["", "a = 1", "{eval}`a`"], "`a` must give text, got 1: write it as an f-string"),
        (["", "a = 1", '{eval}`f"{a}"`', "a = 2"], "must stay what it is, got '2' after '1'"),
    ],
    ids=["too early", "no text", "assigned again"],
)
def test_an_expression_that_cannot_be_shown_fails(executed, cells, told):
    with pytest.raises(papermill.PapermillExecutionError, match=re.escape(told)):
        executed(*cells)


@pytest.mark.filterwarnings("default")
def test_notebooks_run_in_their_folder_and_keep_audits_where_they_were_told(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = sys.modules["run"].parameters("audited", {}, "cpu", Path("kept"))
    assert given == {"device": "cpu", "results": str(tmp_path / "kept/audited")}
    notebook = nbformat.read(tmp_path / "notebooks/keeps_nothing.ipynb", as_version=4)
    notebook.cells[1].source = "from pathlib import Path; print(Path().absolute())"
    nbformat.write(notebook, tmp_path / "notebooks/keeps_nothing.ipynb")
    assert run("keeps_nothing") == 0
    shown = nbformat.read(tmp_path / "_build/executed/keeps_nothing.ipynb", as_version=4).cells[1].outputs[0].text
    assert shown.strip() == str(tmp_path / "notebooks")


def test_what_cannot_be_rerun_is_said_first(run, tmp_path):
    for arguments, told in (
        (["xyz"], "there is no notebook 'xyz' in notebooks/: there are audited, fails, keeps_nothing"),
        (["audit"], r"there is no notebook 'audit' in notebooks/: did you mean 'audited'\?"),
        (["audited", "--preset", "huge"], "there is no preset 'huge' in notebooks/params/: there are small"),
        (["audited", "-p", "rums", "20"], r"-p: audited has no parameter 'rums': did you mean 'runs'\?"),
        (["audited", "-p", "runs", "many"], "-p: audited: runs must be a whole number, got 'many'"),
        (["keeps_nothing", "audited", "-p", "runs", "20"], "-p: keeps_nothing has no parameter 'runs': there are poi"),
    ):
        with pytest.raises(SystemExit, match=told):
            run(*arguments)
    with pytest.raises(SystemExit):
        run("--device", "tpu")
    assert not (tmp_path / "_build").exists()


NUMBERS = "runs = 10\ndelta = 1e-5\nrates = [1.0, 0.25]\nmore = []\nflag = True\nname = 'a'"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("rums: 20", r"small.yaml: numbers has no parameter 'rums': did you mean 'runs'\?"),
        ("quite_another: 1", "has no parameter 'quite_another': there are runs, delta, rates, more, flag, name"),
        ("runs: 1e3", "small.yaml: numbers: runs must be a whole number, got '1e3': write 1000"),
        ("runs: 20.5", r"runs must be a whole number, got 20.5"),
        ("runs: [20]", r"runs must be a whole number, got \[20\]"),
        ("runs: yes", "runs must be a whole number, got True"),
        ("runs:", "runs must be a whole number, got None"),
        ("name: 3", "name must be a text, got 3"),
        ("- runs", "numbers must have lines like `runs: 100`, got"),
        ("runs: [", "must be YAML"),
        ("delta: 1e-6", "delta must be a number, got '1e-6', a text in YAML: write 1.0e-6"),
        ("delta: 1.5e3", r"got '1.5e3', a text in YAML: write 1.5e\+3"),
        ("delta: '0.1'", "got '0.1', a text: write 0.1 without quotes"),
        ("delta: small", "delta must be a number, got 'small'$"),
        ("rates: 0.5", r"rates must be a list, such as \[1.0, 0.25\], got 0.5"),
        ("rates: []", "rates must be a list"),
        ("rates: [0.5, 1e-3]", "rates must be a list, each of it a number, got '1e-3', a text in YAML: write 1.0e-3"),
    ],
)
def test_a_preset_is_checked_before_anything_runs(run, tmp_path, written, told):
    write_notebook(tmp_path, "numbers", NUMBERS, "print(runs)")
    preset_of(tmp_path, f"numbers:\n  {written}\n")
    with pytest.raises(SystemExit, match=told):
        run()
    assert not (tmp_path / "_build").exists()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("audit: {}", r"small.yaml: there is no notebook 'audit' in notebooks/: did you mean 'audited'\?"),
        ("- audited", r"small.yaml must have a section for each notebook that it changes, got \['audited'\]"),
        ("audited:", "small.yaml: audited must have lines like `runs: 100`, got None"),
    ],
)
def test_a_preset_has_sections_of_notebooks(run, tmp_path, written, told):
    preset_of(tmp_path, written)
    with pytest.raises(SystemExit, match=told):
        run()


def test_a_preset_may_give_whole_numbers_for_others_and_be_empty(run, tmp_path):
    write_notebook(tmp_path, "numbers", NUMBERS, "print(runs)")
    preset_of(tmp_path, "numbers:\n  delta: 1\n  rates: [1, 0.5]\n  more: [3]\n  flag: false\n")
    given = {"delta": 1, "rates": [1, 0.5], "more": [3], "flag": False}
    assert presets.sections(tmp_path / "notebooks", "small") == {"numbers": given}
    preset_of(tmp_path, "# nothing\n")
    assert presets.sections(tmp_path / "notebooks", "small") == {}


@pytest.mark.filterwarnings("default")
def test_a_preset_of_ones_own_runs_the_notebooks_that_it_has(run, tmp_path, capsys):
    preset_of(tmp_path, "keeps_nothing:\n  points: 4\n", "mine")
    notebook = nbformat.read(tmp_path / "notebooks/keeps_nothing.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell('There are {eval}`f"{points}"`.'))
    notebook.cells.append(nbformat.v4.new_code_cell("from own_code.glue import glue"))
    (tmp_path / "notebooks/own_code").mkdir()
    (tmp_path / "notebooks/own_code/glue.py").write_text("glue = 1\n")
    nbformat.write(notebook, tmp_path / "notebooks/keeps_nothing.ipynb")
    assert run("--preset", "mine", "-p", "points", "5", "--filled", str(tmp_path / "alone")) == 0
    shown = capsys.readouterr().out
    *_, code, prose = nbformat.read(tmp_path / "alone/keeps_nothing.ipynb", as_version=4).cells
    assert (code.outputs[0].text, prose.source) == ("5\n", "There are 5.")
    assert "keeps_nothing" in shown
    assert "audited" not in shown
    with pytest.raises(SystemExit, match="there is no preset 'huge' in notebooks/params/: there are mine, small"):
        run("--preset", "huge")


@pytest.mark.filterwarnings("default")
def test_a_notebook_that_fails_beside_its_audits_says_that_they_are_there(run, tmp_path, monkeypatch, capsys):
    module, results = sys.modules["run"], tmp_path / "results"

    def execute(*_):
        raise papermill.PapermillExecutionError(1, 1, "", "FileNotFoundError", "no features", [])

    monkeypatch.setattr(module, "execute", execute)
    monkeypatch.setattr(module, "stored_models", lambda folder: 90_000)
    assert run("audited", "--results", str(results)) == 1
    told = f"the 90,000 models in {results / 'audited'} stay; dpsub.audits.load_all('{results / 'audited'}') reads them"
    assert told in capsys.readouterr().out


@pytest.fixture
def book(run, tmp_path, monkeypatch):
    """A notebook with own code, a kept result and a package of its own, executed; what changes it triggers a run."""
    package = tmp_path / "site" / "dpsub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room.py").write_text("a = 1\n")
    monkeypatch.setattr(copies, "dpsub_folder", lambda: package)
    monkeypatch.setenv("DPSUB_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/vectors.npz").write_bytes(b"1")
    own, results = tmp_path / "notebooks/own_code", tmp_path / "results/paper"
    own.mkdir()
    results.mkdir(parents=True)
    (own / "helper.py").write_text("from own_code.deeper import c\nuses = 'studies.topic.drawn'\n")
    for place in ("topic", "other_topic"):
        (tmp_path / "studies" / place).mkdir(parents=True)
        (tmp_path / "studies" / place / "drawn.py").write_text("e = 1\n")
    (own / "deeper.py").write_text("c = '../results/found.json'\n")
    (own / "unused.py").write_text("d = 1\n")
    (tmp_path / "results/found.json").write_text("1")
    (tmp_path / "results/other.json").write_text("1")
    (results / "kept.csv").write_text("1")
    code = """from pathlib import Path
from own_code import helper
print(len(list(Path("../results/paper").iterdir())), Path(helper.c).read_text(), points)"""
    for name, source in {"page": code, "other": "print(points)"}.items():
        write_notebook(tmp_path, name, "points = 3", source)
    module = sys.modules["run"]
    monkeypatch.setattr(module, "machine", lambda device: ("cpu, 1 core", "abc"))
    executed = []  # by name

    def execute(job):
        copies.prepare(job.source, job.target)
        notebook = nbformat.read(job.target, as_version=4)
        notebook.metadata.papermill = {"exception": None, "end_time": "2026-01-01T00:00:00", "duration": 1.0}
        copies.mark(job.target, notebook, job.made_from)
        executed.append(job.name)

    def in_this_process(jobs, at_once):
        yield from ((job.name, module.attempt(job)) for job in jobs)

    monkeypatch.setattr(module, "execute", execute)
    monkeypatch.setattr(module, "in_processes", in_this_process)

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
    notebook.cells.append(nbformat.v4.new_markdown_cell("More."))
    nbformat.write(notebook, root / "notebooks/page.ipynb")


def with_a_failed_copy(root):
    executed = nbformat.read(root / "_build/executed/page.ipynb", as_version=4)
    executed.metadata.papermill.exception = True
    nbformat.write(executed, root / "_build/executed/page.ipynb")


def with_an_interrupted_copy(root):
    copies.prepare(root / "notebooks/page.ipynb", root / "_build/executed/page.ipynb")


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (with_a_new_cell, ["page"]),
        (edited("notebooks/params/small.yaml", "page:\n  points: 4\n"), ["page"]),
        (edited("notebooks/own_code/helper.py"), ["page"]),
        (edited("notebooks/own_code/deeper.py"), ["page"]),
        (edited("studies/topic/drawn.py"), ["page"]),
        (edited("studies/other_topic/drawn.py"), []),
        (edited("results/found.json"), ["page"]),
        (edited("results/paper/kept.csv"), ["page"]),
        (edited("results/paper/new.csv"), ["page"]),
        (lambda root: (root / "results/found.json").unlink(), ["page"]),
        (edited("site/dpsub/room.py"), ["other", "page"]),
        (edited("site/dpsub/new.py"), ["other", "page"]),
        (edited("notebooks/own_code/table.csv"), ["other", "page"]),
        (with_a_failed_copy, ["page"]),
        (with_an_interrupted_copy, ["page"]),
        (edited("_build/executed/page.ipynb", '{"cells": ['), ["page"]),
        (lambda root: (root / "_build/executed/page.ipynb").unlink(), ["page"]),
        (edited("notebooks/own_code/unused.py"), []),
        (edited("results/other.json"), []),
        (edited("notebooks/params/paper.yaml"), []),
        (edited("notebooks/params/small.yaml", "other: {}\n"), []),
    ],
)
def test_a_notebook_runs_again_if_what_it_was_made_from_has_changed(book, tmp_path, change, again):
    change(tmp_path)
    assert book() == again
    assert book() == []


def test_other_packages_and_devices_run_everything_again_and_so_does_all(book, monkeypatch):
    assert book("--all") == ["other", "page"]
    monkeypatch.setattr(copies, "packages", lambda: ["numpy 3"])
    assert book() == ["other", "page"]
    monkeypatch.setattr(sys.modules["run"], "machine", lambda device: ("NVIDIA H200, 1 GPU", "abc"))
    assert book() == ["other", "page"]
    assert book() == []


def test_a_file_given_as_a_parameter_is_watched(book, tmp_path):
    for place in (tmp_path / "data/vectors.npz", tmp_path / "notebooks/own.npz"):
        place.write_bytes(b"1")
        digests = []
        for content in (b"1", b"2"):
            place.write_bytes(content)
            found = copies.made_from(tmp_path / "notebooks/other.ipynb", {"features": place.name}, "cpu")
            digests.append(found["files"])
        assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('load("../results/paper")', ["results/paper"]),
        ("name = f'../results/{preset}/x'", ["results"]),
        ("Path('..', 'results', 'x')", ["results"]),
        ('isn\'t = Path("../results/paper")', ["results/paper"]),
        ("Path('own_code/zoo.py').read_text()", ["notebooks/own_code/zoo.py"]),
        ("load('../results/not there yet')", ["results/not there yet"]),
        ("load('../../elsewhere', '.', '../_build/x', 'no such file', '')", []),
    ],
)
def test_places_that_code_names_are_found(tmp_path, code, found):
    (tmp_path / "notebooks/own_code").mkdir(parents=True)
    places = copies.read_files(code, [], tmp_path / "notebooks")
    assert [place.relative_to(tmp_path).as_posix() for place in places] == found


def test_what_is_unchanged_is_said_and_still_shown(book, run, capsys):
    assert run("page", "--show") == 0
    shown = capsys.readouterr().out
    assert re.search(r"page +unchanged +0 s\n", shown)
    assert "other" not in shown


def test_reruns_with_results_always_execute(book, tmp_path):
    for _ in range(2):
        assert book("--results", str(tmp_path / "kept")) == ["other", "page"]


def test_the_kept_results_of_the_book_are_watched():
    root = Path(__file__).parent.parent
    for path in sorted(root.glob("notebooks/*.ipynb")):
        code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        watched = copies.read_files(code, [], root / "notebooks")
        for name in re.findall(r"\.\./(results[\w./]*)", code):
            assert any(place in ((root / name), *(root / name).parents) for place in watched), (path.stem, name)


@pytest.mark.book
@pytest.mark.filterwarnings("default")
def test_notebooks_run_side_by_side_and_one_that_fails_stops_no_other(run, tmp_path, capsys, monkeypatch):
    meet = """import os, time
from pathlib import Path
Path(f"{own}.there").touch()
for _ in range(1000):
    time.sleep(0 if Path(f"{other}.there").exists() else 0.1)
assert Path(f"{other}.there").exists()
print(os.environ["OMP_NUM_THREADS"])"""
    for own, other in (("keeps_nothing", "audited"), ("audited", "keeps_nothing")):
        notebook = nbformat.read(tmp_path / f"notebooks/{own}.ipynb", as_version=4)
        notebook.cells[1].source = f"own, other = {own!r}, {other!r}\n{meet}"
        nbformat.write(notebook, tmp_path / f"notebooks/{own}.ipynb")
    monkeypatch.setattr(sys.modules["run"], "MEASURE_SPEED", ())
    assert run() == 1
    told = capsys.readouterr()
    assert re.search(r"\[ 1/3\] \w+ +(ran|failed) ", told.out)
    assert re.search(r"fails +failed +\d+ s +ValueError: runs is 20\n", told.out)
    for name in ("keeps_nothing", "audited"):
        cells = nbformat.read(tmp_path / f"_build/executed/{name}.ipynb", as_version=4).cells
        assert int(cells[-1].outputs[0].text) >= 1


@pytest.mark.slow
def test_an_interrupt_stops_all_of_them(tmp_path):
    root = Path(__file__).parent.parent
    (tmp_path / "notebooks/params").mkdir(parents=True)
    for name in ("one", "two", "three"):
        waits = f"import os, time; open('{name}.pid', 'w').write(str(os.getpid())); time.sleep(600)"
        write_notebook(tmp_path, name, "points = 3", waits)
    preset_of(tmp_path, "{one: {}, two: {}, three: {}}")
    code = (
        "import sys; from pathlib import Path; import run; here = Path(sys.argv.pop(1)); run.ROOT = here;"
        "run.SOURCES, run.EXECUTED = here / 'notebooks', here / '_build/executed';"
        "run.machine = lambda device: ('cpu, 1 core', 'abc'); sys.exit(run.main())"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "--preset", "small"],
        env={**os.environ, "PYTHONPATH": f"{root / 'book'}:{root}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = wait_for(lambda: [path for path in tmp_path.glob("notebooks/*.pid") if path.read_text()], 2)
    started.send_signal(signal.SIGINT)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "stopped; the same command goes on with the notebooks that are left" in told
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
