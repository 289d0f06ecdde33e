"""A file is read as if a stranger had made it: what is not as dpsub writes it is named, and gives no number."""

import json
import os
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import trainings_of_others as others

from dpsub import audit_training, audits
from dpsub.audits import many_runs
from dpsub.audits.stored_file import FORMAT, SCHEMA, SUPER_JOURNAL, digest_of, identity_of


@pytest.fixture(scope="module")
def made(tmp_path_factory, task, model, canary, spec):
    path = tmp_path_factory.mktemp("made") / "audit.db"
    many_runs.audit(
        task, model, canary, spec, runs=300, observe_every=2, seed=3, device="cpu", store=path, progress=False
    )
    return path


@pytest.fixture
def store(made, tmp_path):
    return shutil.copy(made, tmp_path / "audit.db")


def forge(store, *statements, about=None, signed=True):
    """Change a store by SQL, and by its texts, and write checksums that are right again."""
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        for statement in statements:
            database.execute(*(statement if isinstance(statement, tuple) else (statement,)))
        told = dict(database.execute("SELECT name, value FROM about WHERE name != 'sha256'"))
        for name, change in (about or {}).items():
            value = json.loads(told[name])
            told[name] = json.dumps(change(value) or value)
            database.execute("UPDATE about SET value = ? WHERE name = ?", [told[name], name])
        if not signed:
            return
        identity = identity_of(told)
        database.execute("UPDATE about SET value = ? WHERE name = 'sha256'", [identity])
        tables = [name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for row in database.execute("SELECT * FROM shards").fetchall() if "shards" in tables else ():
            digest = digest_of(identity, *row[:-1])
            database.execute("UPDATE shards SET sha256 = ? WHERE number = ?", [digest, row[0]])


def test_what_is_changed_and_signed_again_without_a_change_passes(store, expected):
    forge(store)
    assert audits.load(store).equals(expected)


def test_a_flipped_bit_anywhere_gives_no_other_number(run, store, expected, flip):
    whole = store.read_bytes()
    noticed = 0
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))
    for at in np.random.default_rng(0).choice(used, 60):
        flip(store, int(at))
        for read in (lambda: audits.load(store), run):
            try:
                assert read().equals(expected)
            except ValueError as error:
                assert "store" in str(error)  # noqa: PT017
                noticed += 1
        store.write_bytes(whole)
    assert noticed > 80


def test_only_what_is_lost_is_computed_again(run, store, expected, monkeypatch):
    forge(store, "UPDATE shards SET data = zeroblob(length(data)) WHERE number = 1", signed=False)
    forge(store, "DELETE FROM shards WHERE number = 2", signed=False)
    trained, assemble = [], many_runs.assemble
    monkeypatch.setattr(many_runs, "assemble", lambda *a, **b: trained.append(len(b["bits"])) or assemble(*a, **b))
    with pytest.raises(
        ValueError, match=r"(?s)store is damaged, .*shard 1 is not .*\(runs 128 to 255 of repeat 0\).*repa"
    ):
        run()
    status = audits.status(store)
    assert (status.stored, list(status.damaged)) == (128, ["shard 1"])
    assert "damaged: shard 1 is not what was written" in str(status)
    assert run(repair=True).equals(expected)
    assert sorted(trained) == [44, 128]
    assert audits.status(store).complete


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE about SET value = '{' WHERE name = 'attributes'",
        "DELETE FROM about",
        "DELETE FROM arrays",
        "DELETE FROM arrays WHERE name LIKE 'canary/%'",
        "UPDATE arrays SET name = CAST(name AS BLOB)",
        "UPDATE arrays SET data = zeroblob(3)",
        "UPDATE about SET value = value || ' ' WHERE name = 'title'",
    ],
)
def test_a_store_that_lost_what_it_says_of_itself_keeps_its_shards(run, store, expected, damage, forbid_training):
    forge(store, damage, signed=False)
    with pytest.raises(ValueError, match=r"(?s)store is damaged.*repair=True"):
        run()
    assert audits.status(store).damaged
    with pytest.raises(ValueError, match="store is damaged"):
        audits.load(store)
    forbid_training()
    assert run(repair=True).equals(expected)


def test_pages_that_sqlite_cannot_read_are_mended(run, store, expected):
    content = bytearray(store.read_bytes())
    content[4096:8192] = os.urandom(4096)
    store.write_bytes(content)
    with pytest.raises(ValueError, match="store is damaged"):
        run()
    assert run(repair=True).equals(expected)
    assert audits.status(store).complete


def test_shards_of_another_audit_are_not_read_as_this_one(run, store, tmp_path, expected):
    run(store=tmp_path / "two.db", seed=4)
    forge(store, ("ATTACH ? AS two", [str(tmp_path / "two.db")]), "DELETE FROM shards",
          "INSERT INTO shards SELECT * FROM two.shards", signed=False)  # fmt: skip
    for call in (run, lambda: audits.load(store)):
        with pytest.raises(ValueError, match="store is damaged.*\n  shard 0 is not what was written"):
            call()
    assert run(repair=True).equals(expected)


def attributes(**changes):
    return {"attributes": lambda told: told.update(changes)}


def layout(change):
    return {"layout": change}


FORGED = {
    "a table more": ({}, ["CREATE TABLE more (x)"], "other tables"),
    "a view": ({}, ["DROP TABLE arrays", "CREATE VIEW arrays AS SELECT 1"], "other tables"),
    "a trigger": ({}, ["CREATE TRIGGER t AFTER INSERT ON about BEGIN SELECT 1; END"], "other tables"),
    "an index of code": ({}, ["CREATE INDEX i ON shards (abs(number))"], "other tables"),
    "another column": ({}, ["ALTER TABLE shards ADD COLUMN x"], "other tables"),
    "another format": ({}, [f"PRAGMA user_version = {FORMAT + 1}"], f"of format {FORMAT + 1} with these tables"),
    "no texts": ({"attributes": lambda told: 3}, [], "what the audit is"),
    "an attribute of lists": (attributes(model=[[1]]), [], "'model' must be a text"),
    "an attribute of nothing": (attributes(model=None), [], "what the audit is"),
    "an infinite attribute": (attributes(learning_rate=float("inf")), [], "'learning_rate' must be a text, a finite"),
    "half a character": (attributes(model="\ud800"), [], "'model' must be a text"),
    "no title": ({"title": lambda told: " "}, [], "title must be a text"),
    "no runs": (layout(lambda told: told.update(cut=[0, 1, 128, 128])), [], "cut must be >= 1"),
    "fractions of runs": (layout(lambda told: told.update(cut=[1.5, 1, 128, 128])), [], "cut must be a whole number"),
    "too many runs": (layout(lambda told: told.update(cut=[2**60, 1, 128, 128])), [], "cut must be >= 1"),
    "objects": (layout(lambda told: told["variables"]["score"].__setitem__(1, "object")), [], "of float32"),
    "another size": (layout(lambda told: told["variables"]["bit"][0].update(run=299)), [], "for each run"),
    "no scores": (layout(lambda told: told["variables"].pop("score") and None), [], "scores and bits"),
    "a coordinate elsewhere": (layout(lambda told: told["coordinates"].update(step="run")), [], "'step' must have one"),
    "a coordinate less": (layout(lambda told: told["coordinates"].update(other="run")), [], "coordinate/other"),
    "a long array": ({}, ["UPDATE arrays SET data = zeroblob(2000000)"], "longer than its shape"),
    "an array of objects": ({}, ["UPDATE arrays SET dtype = 'object'"], "it must be an array of"),
    "an array of a size below 0": ({}, ["UPDATE arrays SET shape = '[-1]'"], "it must be an array of"),
    "a huge array": ({}, ["UPDATE arrays SET shape = '[90000000000000]'"], "store must fit the memory"),
    "a shard too many": ({}, ["UPDATE shards SET number = 7 WHERE number = 2"], "no shard of that number"),
    "a shard below 0": ({}, ["UPDATE shards SET number = -1 WHERE number = 2"], "no shard of that number"),
    "a long shard": ({}, ["UPDATE shards SET data = zeroblob(2000000)"], "longer than a shard"),
    "a short shard": ({}, ["UPDATE shards SET zipped = 0, data = zeroblob(3)"], "it must be"),
    "a bomb": ({}, ["UPDATE shards SET zipped = 1, data = x'789c030000000001'"], "it must be"),
    "no zip": ({}, ["UPDATE shards SET zipped = 1, data = zeroblob(40)"], "zlib cannot read it"),
    "a text for numbers": ({}, ["UPDATE shards SET data = 'text'"], "shard 0"),
    "a number for text": ({}, ["UPDATE shards SET made = 3"], "shard 0"),
    "nobody made it": ({}, ["UPDATE shards SET made = '{}'"], "shard 0"),
    "failures of others": ({}, ["UPDATE shards SET failed = '{\"999\": \"a\"}'"], "failed runs that are not its own"),
    "failures without words": ({}, ["UPDATE shards SET failed = '{\"1\": 3}'"], "a message must be a text"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_is_refused(store, name):
    about, statements, told = FORGED[name]
    forge(store, *statements, about=about)
    before = store.read_bytes()
    with pytest.raises(ValueError, match=f"(?s)store.*{told}") as error:
        audits.load(store)
    assert "audit.db" in str(error.value) or "store must fit" in str(error.value)
    try:
        assert audits.status(store).damaged
    except ValueError as other:
        assert "store must be" in str(other)  # noqa: PT017
    assert store.read_bytes() == before


def test_an_audit_that_the_memory_does_not_hold_is_refused(store):
    def grown(told):
        told["cut"][0] = 2**40
        for sizes, *_ in told["variables"].values():
            sizes["run"] = 2**40

    forge(store, "DELETE FROM shards", about={"layout": grown})
    with pytest.raises(ValueError, match=r"store must fit the memory, got .*audit.db, which takes [\d,.]+ GiB"):
        audits.load(store, partial=True)


def test_numbers_that_no_audit_has_are_refused(run, store):
    with closing(sqlite3.connect(store)) as database:
        [size] = database.execute("SELECT length(data) FROM shards WHERE number = 2").fetchone()
    size = 44 + 44 * 2 * 4
    for numbers in (np.full(size // 4, np.nan, "<f4").tobytes(), b"\2" * size):
        forge(store, ("UPDATE shards SET zipped = 0, data = ? WHERE number = 2", [numbers[:size]]))
        with pytest.raises(ValueError, match="has numbers that no audit has"):
            audits.load(store)


def test_a_journal_that_goes_while_it_is_read_is_no_error(store, monkeypatch):
    """Another process finishes its transaction just then."""
    journal, is_file = store.with_name("audit.db-journal"), Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path, **options: path == journal or is_file(path, **options))
    assert audits.status(store).complete


def test_a_journal_that_names_other_files_is_not_acted_on(store, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    store.with_name("audit.db-journal").write_bytes(os.urandom(600) + str(mine).encode() + SUPER_JOURNAL)
    for call in (audits.load, audits.status):
        with pytest.raises(ValueError, match="with a journal that names other files"):
            call(store)
    assert mine.read_text() == "mine"


def test_a_place_that_is_something_elses_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("x" * 100)
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.zarr").mkdir()
    (tmp_path / "old.zarr/zarr.json").write_text("{}")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("zarr.json", "{}")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE letters (x)")
    for name, told in (
        ("file", "store must be an audit's file, got .*/file, another file: give another path"),
        (
            "folder",
            r"store must be a file, got the folder .*/folder: an audit is one database: give .*/folder/audit\.db",
        ),
        ("old.zarr", r"got the folder .*/old.zarr: which dpsub 0\.1 wrote: read it with dpsub 0\.1, or give another"),
        ("packed.zip", r"got .*/packed.zip, an archive: dpsub 0\.1 reads those that it packed"),
        ("pipe", "store must be a file, got .*/pipe, a pipe or device"),
        ("other.db", f"store must be an audit of format {FORMAT}, got .*/other.db, a database of format 0 with other"),
        ("circle", "circle"),
    ):
        before = sorted(tmp_path.rglob("*"))
        for call in (lambda: run(store=tmp_path / name, repair=True), lambda: audits.status(tmp_path / name)):
            with pytest.raises((ValueError, OSError), match=told):
                call()
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match=r"store must be an audit's file, got .*/nowhere, where there is none"):
        audits.status(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    assert run(store=tmp_path / "empty").sizes["run"] == 300


@pytest.mark.filterwarnings("ignore:.* runs failed")
def test_failed_runs_have_no_scores_and_others_have_them(tmp_path):
    store = tmp_path / "training.db"
    options = {"runs": 12, "adjacency": "substitute", "name": "two scores", "seed": 3, "steps": others.STEPS}
    made = audit_training(others.fails_at_times, store=store, progress=False, **options)
    failed = made.attrs["failed_runs"][0]
    fine = next(run for run in range(12) if run not in made.attrs["failed_runs"])
    assert audits.load(store).identical(made)
    forge(store, ("UPDATE shards SET failed = '{}' WHERE number = ?", [failed]))
    with pytest.raises(ValueError, match="'score' has numbers that no audit has"):
        audits.load(store)
    audit_training(others.fails_at_times, store=store, repair=True, progress=False, **options)
    nothing = np.array([np.nan, 1.0], "<f4").tobytes()
    forge(store, ("UPDATE shards SET zipped = 0, data = ? WHERE number = ?", [b"\0" + nothing, fine]))
    with pytest.raises(ValueError, match="'score' has numbers that no audit has"):
        audits.load(store)


@pytest.mark.slow
def test_random_changes_are_refused_or_say_the_same(store, expected):
    """Any value of any text or row takes that of another: the answer is the same numbers, or a sentence."""
    rng = np.random.default_rng(0)
    values = ["NULL", "0", "-1", "1.5", "'a'", "''", "'[]'", "'{}'", "x'00'", str(2**60), "zeroblob(100)", "'[[1]]'"]
    columns = {"about": ["name", "value"], "arrays": ["name", "dtype", "shape", "zipped", "data"],
               "shards": ["number", "made", "failed", "zipped", "data"]}  # fmt: skip
    whole, refused = store.read_bytes(), 0
    for _ in range(400):
        store.write_bytes(whole)
        table = rng.choice(list(columns))
        column, value = rng.choice(columns[table]), rng.choice(values)
        try:
            forge(store, f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE rowid = {rng.integers(1, 6)}")
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            continue
        try:
            audits.load(store)
        except ValueError as error:
            refused += str(error).startswith("store")
    assert refused > 100


def test_the_tables_are_those_that_are_described(store):
    with closing(sqlite3.connect(store)) as database:
        held = [sql for [sql] in database.execute("SELECT sql FROM sqlite_master ORDER BY rowid") if sql]
    assert held == list(SCHEMA)
