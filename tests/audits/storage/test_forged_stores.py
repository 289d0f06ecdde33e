"""Stores whose checksums are right and whose documents are not what dpsub writes: they are refused in a sentence."""

import json
import random
import shutil
import zipfile
from copy import deepcopy
from hashlib import sha256

import numpy as np
import pytest
import xarray as xr
from numcodecs import Zstd

from dpsub import DPSGD, CanaryPair, Pairs, audit, audit_one_run, audit_steps, audits, data, models
from dpsub.audits.plans import fingerprint
from dpsub.audits.storage import archive, decoding
from dpsub.audits.storage.contents import WHERE_FROM, vouched

NOT_OURS = r"store must be as dpsub writes it, got .*audit\.zarr.*, whose .* is not: "


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A store of few bytes with two repeats and a metric: its folder, and the call that made it."""
    place = tmp_path_factory.mktemp("small") / "audit.zarr"
    task = data.from_arrays(np.eye(3), [0, 1, 0], x_test=np.eye(3), y_test=[0, 1, 0])
    pair, spec = CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4"), DPSGD(1.0, 1.0, 1.0, 3, 0.1)
    options = {"runs": 5, "repeats": 2, "metrics": ("accuracy",), "device": "cpu", "progress": False}

    def call(store, **more):
        return audit(task, models.linear(task), pair, spec, store=store, **options, **more)

    call(place)
    return place, call


@pytest.fixture(scope="module")
def small_steps(tmp_path_factory):
    """The same for an audit of steps, of records that stay the same."""
    place = tmp_path_factory.mktemp("steps") / "audit.zarr"
    task = data.from_arrays(np.eye(3), [0, 1, 0])
    pair, spec = CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4"), DPSGD(1.0, 1.0, 1.0, 3, 0.1)

    def call(store, **more):
        options = {"trainings": 5, "device": "cpu", "progress": False, **more}
        return audit_steps(task, models.linear(task), pair, spec, store=store, **options)

    call(place)
    return place, call


@pytest.fixture
def store(small, tmp_path):
    return shutil.copytree(small[0], tmp_path / "audit.zarr")


def documents(store):
    return {path.relative_to(store).as_posix(): json.loads(path.read_bytes()) for path in store.rglob("zarr.json")}


def write(store, found, changed=(), *, fingerprints=True):
    """Write documents with right checksums of themselves, each other, and of the changed files, by name."""
    root = found["zarr.json"]
    about = {
        name: value
        for name, value in root["attributes"].items()
        if name not in WHERE_FROM and not name.startswith("version_")
    }
    contents = dict(changed)
    for name, document in found.items():
        if name != "zarr.json" and (name == "shards/zarr.json" or not name.startswith("shards/")):
            contents[name] = json.dumps(document).encode()
            if not isinstance(document, dict):
                continue
    for name, document in found.items():
        attributes = document.get("attributes") if isinstance(document, dict) else None
        files = attributes.get("files") if isinstance(attributes, dict) else None
        for file in files if isinstance(files, dict) else ():
            if file in contents:
                files[file] = sha256(contents[file]).hexdigest()
        if name.startswith("shards/") and name != "shards/zarr.json" and fingerprints and isinstance(attributes, dict):
            attributes["audit"] = fingerprint(about) if isinstance(about.get("metrics"), str) else attributes["audit"]
        if name == "zarr.json" or (name.startswith("shards/") and name != "shards/zarr.json"):
            contents[name] = vouched(document)
    for name, content in contents.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(content)


def change(store, act, files=(), **options):
    found = documents(store)
    act(found)
    write(store, found, files, **options)


def refused(store, call, told=""):
    """Whether every way to read a store says that it is not one of dpsub's, as a folder and packed."""
    for read in (audits.load, audits.status, audits.pack, call, lambda path: call(path, repair=True)):
        with pytest.raises(ValueError, match=f"(?s){NOT_OURS}.*{told}"):
            read(store)
    files = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    packed = store.with_name("packed-audit.zarr.zip")
    archive.write_archive(packed, {name: content for name, content in files.items() if name != ".dpsub-lock"})
    for read in (audits.load, audits.status, call):
        with pytest.raises(ValueError, match=f"(?s){NOT_OURS}.*{told}"):
            read(packed)


def test_a_payload_behind_a_codec_of_the_metadata_is_never_opened(small, store, tmp_path, monkeypatch):
    """What ran code under numcodecs 0.16.5: an array of zarr's second format in the consolidated metadata."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    evil = {
        "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": "", "order": "C",
        "filters": [{"id": "vlen-utf8"}],
        "compressor": {"id": "pickle"}, "attributes": {"_ARRAY_DIMENSIONS": ["evil"]},
        "dimension_separator": ".", "node_type": "array",
    }  # fmt: skip
    payload = f"cos\nmkdir\n(V{tmp_path / 'ran'}\ntR.".encode()  # unpacked, it makes this folder

    def act(found):
        found["zarr.json"]["consolidated_metadata"]["metadata"]["evil"] = evil
        found["zarr.json"]["attributes"]["files"]["evil/0"] = sha256(payload).hexdigest()

    change(store, act, {"evil/0": payload})
    refused(store, small[1])
    assert not (tmp_path / "ran").exists()


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
OTHERS = [
    ("codecs", [LITTLE, {"name": "gzip", "configuration": {"level": 3}}]),
    ("codecs", [LITTLE, {"name": "zstd", "configuration": {"level": 3.0, "checksum": False}}]),
    ("codecs", [{"name": "bytes", "configuration": {"endian": "big"}}]),
    ("codecs", [{"name": "numcodecs.pickle", "configuration": {}}]),
    ("codecs", []),
    ("codecs", ""),
    ("data_type", "variable_length_utf8"),
    ("data_type", "float64"),
    ("fill_value", 1.0),
    ("shape", [1, 1]),
    ("shape", [2**60, 2, 2**60]),
    ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [1, 1, 1]}}),
    ("chunk_grid", {"name": "rectilinear", "configuration": {}}),
    ("chunk_key_encoding", {"name": "v2", "configuration": {"separator": "."}}),
    ("dimension_names", ["repeat", "run", "other"]),
    ("storage_transformers", [{"name": "other"}]),
    ("attributes", {"long_name": "score", "scale_factor": 2.0, "labels": []}),
    ("attributes", {"units": "days since 1970-01-01", "calendar": "standard"}),
    ("must_understand", False),
]  # fmt: skip


@pytest.mark.parametrize("name", ["score", "bit", "step", "canary/z"])
@pytest.mark.parametrize(("key", "value"), OTHERS)
def test_arrays_are_those_that_a_plan_writes(small, store, name, key, value):
    """In the array's own document and the consolidated one, so that the two agree."""

    def act(found):
        found["zarr.json"]["consolidated_metadata"]["metadata"][name][key] = value
        found[f"{name}/zarr.json"][key] = value

    change(store, act)
    refused(store, small[1])


def test_documents_of_arrays_agree_with_the_consolidated_ones(small, store):
    change(store, lambda found: found["score/zarr.json"]["attributes"].update(long_name="other"))
    refused(store, small[1], "it differs from what zarr.json says")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runs", 6), ("runs", 2**80), ("runs", "5"), ("runs", True), ("runs", 5.0), ("repeats", 1), ("repeats", 10**18),
        ("steps", 10**15), ("steps", 4), ("observe_every", 2), ("block_size", 1), ("block_size", 2**70), ("n", None),
        ("noise_multiplier", float("nan")), ("noise_multiplier", "1"), ("metrics", "accuracy accuracy"),
        ("metrics", "../accuracy"), ("metrics", ["accuracy"]), ("metrics", ""), ("seeds", [0]), ("slot", [0, 0]),
        ("slot", 3), ("adjacency", "other"), ("optimizer", ["sgd"]), ("task", "\ud800"), ("scenario", {}),
        ("canary_crafted", "anew for each repeat"), ("canary_norm", {"a": [1]}), ("wall_seconds", "long"),
        ("files", ["zarr.json"]), ("models_stored", None), ("trained_coordinates", "some"),
    ],
)  # fmt: skip
def test_attributes_are_those_that_an_audit_records(small, store, name, value):
    change(store, lambda found: found["zarr.json"]["attributes"].update({name: value}))
    refused(store, small[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audited", "models"), ("audited", None), ("protocol", "coin"), ("protocol", None), ("q_c", 0.0), ("q_c", 1.5),
        ("q_c", "1"), ("observe_every", 3), ("metrics", "accuracy"), ("canary_crafted", "anew at each step"),
        ("canary_crafted", "anew for each repeat"), ("runs", 6), ("steps", 4), ("repeats", 2),
    ],
)  # fmt: skip
def test_attributes_are_those_that_an_audit_of_steps_records(small_steps, tmp_path, name, value):
    place = shutil.copytree(small_steps[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].update({name: value}))
    refused(place, small_steps[1])


def test_an_audit_of_steps_does_not_pass_for_one_of_models(small_steps, tmp_path):
    place = shutil.copytree(small_steps[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].pop("audited"))
    refused(place, small_steps[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("models", 10**30), ("models", 4), ("runs", "runs 0 to 4 of repeat 7"), ("device", None), ("seconds", "1"),
        ("elapsed", [1]), ("versions", {}), ("versions", ["torch"]), ("versions", {"torch": 1, "dpsub": "1"}),
        ("files", {}), ("files", {"score/c/1/0/0": "0" * 64}), ("files", {"score/c/0/0/0": 3}), ("other", 1),
    ],
)  # fmt: skip
def test_shards_are_those_of_the_audit(small, store, name, value):
    change(store, lambda found: found["shards/0/zarr.json"]["attributes"].update({name: value}))
    refused(store, small[1])


def test_a_shard_that_the_audit_does_not_have_is_refused(small, store):
    def act(found):
        found["shards/2/zarr.json"] = deepcopy(found["shards/1/zarr.json"])
        found["shards/2/zarr.json"]["attributes"]["number"] = 2

    change(store, act)
    refused(store, small[1], "number must be below 2, got 2")


def frames(values):
    """What stands in the place of a chunk: bombs, and frames that are not of the chunk's size."""
    right = bytes(Zstd(level=3).encode(values))
    unknown = b"\x28\xb5\x2f\xfd\x00\x58" + (1 | 1 << 1 | 100_000 << 3).to_bytes(3, "little") + b"a"
    return {
        "a larger frame": Zstd().encode(np.zeros(10**7, np.uint8)),
        "a smaller frame": Zstd().encode(values[:1]),
        "two frames": right + bytes(Zstd().encode(np.zeros(10**7, np.uint8))),
        "a frame of unknown size": unknown,
        "no frame": b"other",
        "a frame that is cut short": right[:-3],
        "a broken frame": right[:6] + bytes([right[6] | 6]) + right[7:],
    }


@pytest.mark.parametrize("kind", frames(np.ones(15, np.float32)))
def test_a_chunk_is_one_frame_of_its_size_and_no_bomb(small, store, kind, monkeypatch):
    file, sizes = "score/c/0/0/0", []
    content = bytes(frames(np.frombuffer(Zstd().decode((store / file).read_bytes()), "<f4"))[kind])
    change(store, lambda found: None, {file: content})
    decode = decoding.Zstd.decode
    monkeypatch.setattr(decoding.Zstd, "decode", lambda self, raw: sizes.append(found := decode(self, raw)) or found)
    for read in (audits.load, audits.pack, small[1]):
        with pytest.raises(ValueError, match="score/c/0/0/0 is not"):
            read(store)
    assert all(len(found) < 1000 for found in sizes)


def test_frames_of_every_size_are_read():
    rng = np.random.default_rng(0)
    for size in (1, 2, 255, 256, 257, 65_535, 65_536, 66_000, 300_000):
        for values in (np.zeros(size, np.uint8), rng.integers(256, size=size, dtype=np.uint8)):
            for frame in (Zstd(level=3, checksum=True), Zstd(level=0)):
                content = bytes(frame.encode(values))
                assert decoding.decompressed(content, size, "x") == values.tobytes()
                with pytest.raises(ValueError, match="x is not"):
                    decoding.decompressed(content, size + 1, "x")


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("score/c/0/0/0", np.full(15, np.nan, np.float32)),
        ("bit/c/0/0", np.full(5, 7, np.int8)),
        ("step/c/0", np.array([1, 1, 1])),
        ("repeat/c/0", np.array([0, 7])),
    ],
)
def test_numbers_that_no_audit_has_are_refused(small, store, file, values):
    change(store, lambda found: None, {file: bytes(Zstd().encode(values))})
    for read in (audits.load, audits.pack, small[1]):
        with pytest.raises(ValueError, match="has numbers that no audit has"):
            read(store)


def test_an_audit_that_the_memory_does_not_hold_is_not_read(store, monkeypatch):
    monkeypatch.setattr(decoding.devices, "free_bytes", lambda device: 100)
    with pytest.raises(ValueError, match=r"store must fit the memory, got .*: it takes 0\.0 GiB of memory, and 0"):
        audits.load(store)


@pytest.mark.parametrize("name", ["evil.txt", "../evil.txt", "/evil.txt", "shards/٣/zarr.json", "shards/01/zarr.json"])
def test_a_packed_file_with_other_names_is_refused(store, tmp_path, name):
    files = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    del files[".dpsub-lock"]
    packed = tmp_path / "packed.zarr.zip"
    archive.write_archive(packed, {**files, name: b"mine"})
    for read in (audits.load, audits.status):
        with pytest.raises(ValueError, match="store must hold only its audit, got .*packed.zarr.zip with"):
            read(packed)


def test_a_packed_file_whose_names_share_their_bytes_is_refused(store, tmp_path, monkeypatch):
    """Overlapping entries stand for more bytes than the file has."""
    packed = audits.pack(store)
    infolist = zipfile.ZipFile.infolist

    def overlapping(self):
        found = infolist(self)
        for info in found:
            info.file_size = 10**9
        return found

    monkeypatch.setattr(zipfile.ZipFile, "infolist", overlapping)
    with pytest.raises(ValueError, match="lists files that it does not hold"):
        audits.load(packed)


def test_documents_of_any_depth_are_refused_in_a_sentence(small, store):
    """Near the limit, a document can be read at one place and not at another, which stands deeper in the calls."""
    deep, refusals = b"[" * 100_000 + b"]" * 100_000, set()
    found = documents(store)
    found["zarr.json"]["attributes"]["files"]["canary/zarr.json"] = sha256(deep).hexdigest()
    (store / "zarr.json").write_bytes(vouched(found["zarr.json"]))
    (store / "canary/zarr.json").write_bytes(deep)
    refused(store, small[1], "it is nested too deeply")
    nested = []
    for depth in range(1, 1_000):
        nested = [nested]
        if depth < 850 or depth % 5:
            continue
        found["zarr.json"]["attributes"]["task"] = nested
        try:
            (store / "zarr.json").write_bytes(vouched(found["zarr.json"]))
        except RecursionError:
            break
        for read in (audits.load, small[1]):
            with pytest.raises(ValueError, match="store (must be as dpsub writes it|is damaged)") as error:
                read(store)
            refusals.add(str(error.value).split(",")[0])
    assert len(refusals) == 2


BAD = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64 + 1, 10**30, 10**4000, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "0", "\ud800", "\0", "é", "../..", "/dev/zero", "a" * 10_000, [], [[]], [None], ["x", 1], {},
    {"a": 1}, {"attributes": {}}, [0] * 50,
]  # fmt: skip


def mutated(value, rng):
    """A document with one change somewhere in it."""
    places = []

    def visit(node, path):
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            places.append((*path, key))
            visit(node[key], (*path, key))

    visit(value, ())
    *path, last = rng.choice(places)
    holder = value
    for key in path:
        holder = holder[key]
    kind, old = rng.randrange(6), holder[last]
    if kind == 0:
        del holder[last]
    elif kind == 1 and isinstance(old, int | float):
        holder[last] = rng.choice([old + 1, -old, float(old), old * 2, str(old), [old], 10**18 + int(old)])
    elif kind == 2:
        holder[last] = rng.choice([[old], {"x": old}, {str(last): old}])
        for _ in range(rng.choice([0, 0, 400])):
            holder[last] = [holder[last]]
    elif kind == 3 and isinstance(holder, dict):
        holder[rng.choice(["x", "", "é\ud800", "scale_factor", "../x", f"{last}2"])] = rng.choice([old, *BAD])
    elif kind == 4 and isinstance(holder, dict):
        holder[rng.choice(list(holder))] = deepcopy(old)
    else:
        holder[last] = deepcopy(rng.choice(BAD))


def numbers_or_sentence(read, made, how):
    """Whether a call gives the dataset that was made, or says in a sentence why not. Which of the two it was."""
    try:
        found = read()
    except (ValueError, OSError) as error:
        sentence = str(error)
        assert " " in sentence, how
        assert "store" in sentence, (how, sentence)
        return False
    if isinstance(found, xr.Dataset):
        assert found.equals(made), how
        assert all(found[name].dtype == made[name].dtype for name in made.variables), how
    else:
        str(found)
    return True


def restored(store, files):
    """The folder with these files and no others. What is there already is not written again."""
    store.with_name(store.name + ".zip").unlink(missing_ok=True)
    for path in sorted(store.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(store).as_posix() not in files:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name, content in files.items():
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def fuzz(small, place, count, seed):
    whole, call = small
    files = {path.relative_to(whole).as_posix(): path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    made, rng, read_still, store = call(whole), random.Random(seed), 0, place / "audit.zarr"
    for i in range(count):
        restored(store, files)
        found = documents(store)
        name = rng.choice([*["zarr.json", "shards/0/zarr.json"] * 4, *sorted(found)])
        mutated(found[name], rng)
        nodes = found["zarr.json"].get("consolidated_metadata") if isinstance(found["zarr.json"], dict) else None
        nodes = nodes.get("metadata") if isinstance(nodes, dict) else None
        if rng.random() < 0.7 and isinstance(nodes, dict):
            inner = name.removesuffix("/zarr.json")
            if inner in nodes and "attributes" in found[name]:
                nodes[inner] = found[name]
        how = f"seed {seed}, mutation {i} of {name}"
        try:
            write(store, found, fingerprints=rng.random() < 0.7)
        except (KeyError, TypeError, ValueError, AttributeError):  # no checksum can be put there
            (store / name).write_bytes(json.dumps(found[name]).encode())
        read_still += numbers_or_sentence(lambda: audits.load(store), made, how)
        numbers_or_sentence(lambda: audits.status(store), made, how)
        numbers_or_sentence(lambda: call(store), made, how)
        numbers_or_sentence(lambda: call(store, repair=True), made, how)
        if i % 5 == 0:
            numbers_or_sentence(lambda: audits.pack(store), made, how)
    return read_still


def test_twenty_five_forged_documents_give_the_audit_or_a_sentence(small, tmp_path):
    assert 0 < fuzz(small, tmp_path, 25, seed=7) < 25


def test_twenty_forged_documents_give_the_audit_of_steps_or_a_sentence(small_steps, tmp_path):
    assert 0 < fuzz(small_steps, tmp_path, 20, seed=3) < 20


@pytest.mark.slow
def test_five_hundred_forged_documents_give_the_audit_of_steps_or_a_sentence(small_steps, tmp_path):
    assert 0 < fuzz(small_steps, tmp_path, 500, seed=4) < 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_forged_documents_give_the_audit_or_a_sentence(small, tmp_path, seed):
    read_still = fuzz(small, tmp_path, 1_000, seed)
    print(f"{read_still} of 1,000 stores were read still, and all others refused")
    assert 10 < read_still < 500


@pytest.fixture(scope="module")
def small_learned(tmp_path_factory):
    """The same for an audit with a learned score, of two repeats."""
    place = tmp_path_factory.mktemp("learned") / "audit.zarr"
    task = data.from_arrays(np.eye(3), [0, 1, 0])
    pair, spec = CanaryPair(([1, 2, 3], 0), ([1, 2, 3], 1), 0, "S4"), DPSGD(1.0, 1.0, 1.0, 3, 0.1)
    options = {"runs": 5, "repeats": 2, "score": "learned", "learning_runs": 32, "device": "cpu", "progress": False}

    def call(store, **more):
        return audit(task, models.linear(task), pair, spec, store=store, **options, **more)

    call(place)
    return place, call


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", "canary"), ("score", None), ("learning_runs", 31), ("learning_runs", "40"), ("learning_runs", True),
        ("learned_fingerprint", 7), ("observe_every", 2), ("audited", "steps"),
    ],
)  # fmt: skip
def test_attributes_are_those_that_an_audit_with_a_learned_score_records(small_learned, tmp_path, name, value):
    place = shutil.copytree(small_learned[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].update({name: value}))
    refused(place, small_learned[1])


@pytest.mark.parametrize("name", ["score", "learning_runs", "learned_fingerprint"])
def test_a_learned_score_is_recorded_whole(small_learned, tmp_path, name):
    place = shutil.copytree(small_learned[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].pop(name))
    refused(place, small_learned[1])


@pytest.mark.parametrize("name", ["coefficients", "directions"])
def test_what_was_learned_is_what_the_fingerprint_says(small_learned, tmp_path, name):
    place = shutil.copytree(small_learned[0], tmp_path / "audit.zarr")
    file = next(path for path in (place / "canary" / name / "c").rglob("*") if path.is_file())
    values = np.frombuffer(Zstd().decode(file.read_bytes()), "<f4") + 1
    changed = {file.relative_to(place).as_posix(): bytes(Zstd().encode(values))}
    change(place, lambda found: None, changed)
    with pytest.raises(ValueError, match="its arrays are not of the score that learned_fingerprint names"):
        small_learned[1](place)


def test_twenty_forged_documents_give_the_audit_with_a_learned_score_or_a_sentence(small_learned, tmp_path):
    assert 0 < fuzz(small_learned, tmp_path, 20, seed=3) < 20


@pytest.mark.slow
def test_five_hundred_forged_documents_give_the_audit_with_a_learned_score_or_a_sentence(small_learned, tmp_path):
    assert 0 < fuzz(small_learned, tmp_path, 500, seed=4) < 500


@pytest.fixture(scope="module")
def small_one_run(tmp_path_factory):
    """The same for an audit of one training, with two pairs of records."""
    place = tmp_path_factory.mktemp("one_run") / "audit.zarr"
    task = data.from_arrays(np.eye(4), [0, 1, 0, 1], x_test=np.eye(4), y_test=[0, 1, 0, 1])
    pairs = Pairs([3, 1], np.eye(4)[:2], np.eye(4)[:2], [0, 1], [1, 0], details={"seed": 3})
    options = {"models": 5, "metrics": ("accuracy", "weights"), "device": "cpu", "progress": False}

    def call(store, **more):
        spec = DPSGD(1.0, 1.0, 1.0, 3, 0.1)
        return audit_one_run(task, models.linear(task), pairs, spec, store=store, **options, **more)

    call(place)
    return place, call


@pytest.mark.parametrize("name", ["step_score", "bit", "weights", "slot"])
@pytest.mark.parametrize(("key", "value"), OTHERS)
def test_arrays_of_one_run_are_those_that_a_plan_writes(small_one_run, tmp_path, name, key, value):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")

    def act(found):
        found["zarr.json"]["consolidated_metadata"]["metadata"][name][key] = value
        found[f"{name}/zarr.json"][key] = value

    change(place, act)
    refused(place, small_one_run[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audited", "models"), ("audited", None), ("audited", "steps"), ("models", 6), ("models", "5"), ("models", 5.0),
        ("models", 10**7), ("pairs", 1), ("pairs", 3), ("pairs", 4), ("pairs", True), ("pairs_fingerprint", 7),
        ("pairs_seed", [3]), ("pairs_seed", {}), ("subtract_expected", True), ("subtract_expected", 2),
        ("subtract_expected", None), ("whiten", -1), ("whiten", 10**5), ("whiten", "0"), ("metrics", ""),
        ("metrics", "weights"), ("metrics", "accuracy"), ("metrics", "weights accuracy"), ("metrics", "distance"),
        ("test_fingerprint", 7), ("adjacency", "add_remove"), ("n", 2), ("n", "4"), ("block_size", 1),
        ("block_size", 3), ("steps", 0), ("seed", -1), ("matmul_precision", "low"), ("noise_multiplier", float("nan")),
        ("models_stored", None), ("wall_seconds", "long"), ("scenario", {}), ("runs", 5), ("slot", 3), ("score", "x"),
        ("trained_coordinates", "all"), ("canary_crafted", "once"), ("trained_by", "own function"),
        ("files", ["zarr.json"]),
    ],
)  # fmt: skip
def test_attributes_are_those_that_an_audit_of_one_run_records(small_one_run, tmp_path, name, value):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].update({name: value}))
    refused(place, small_one_run[1])


def test_an_expected_sum_is_subtracted_before_it_is_whitened(small_one_run, tmp_path):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].update(subtract_expected=0, whiten=2))
    refused(place, small_one_run[1], "whiten must be 0 without subtract_expected")


@pytest.mark.parametrize(
    "name",
    [
        "audited", "models", "pairs", "pairs_fingerprint", "subtract_expected", "whiten", "metrics", "test_fingerprint",
        "scenario", "adjacency", "n", "steps", "seed", "block_size", "matmul_precision", "models_stored",
    ],
)  # fmt: skip
def test_an_audit_of_one_run_is_recorded_whole(small_one_run, tmp_path, name):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["zarr.json"]["attributes"].pop(name))
    refused(place, small_one_run[1])


def test_no_run_of_one_run_fails(small_one_run, tmp_path):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")
    change(place, lambda found: found["shards/0/zarr.json"]["attributes"].update(failed={"0": "no luck"}))
    refused(place, small_one_run[1], "failed must not be there")


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("score/c/0/0", np.full(10, np.nan, np.float32)),
        ("weights/c/0/0", np.full(50, np.inf, np.float32)),
        ("bit/c/0/0", np.full(10, 7, np.int8)),
        ("slot/c/0", np.array([3, 4])),
        ("slot/c/0", np.array([3, -1])),
        ("slot/c/0", np.array([1, 1])),
    ],
)
def test_numbers_that_no_audit_of_one_run_has_are_refused(small_one_run, tmp_path, file, values):
    place = shutil.copytree(small_one_run[0], tmp_path / "audit.zarr")
    change(place, lambda found: None, {file: bytes(Zstd().encode(values))})
    for read in (audits.load, audits.pack, small_one_run[1]):
        with pytest.raises(ValueError, match="has numbers that no audit has"):
            read(place)


def test_twenty_forged_documents_give_the_audit_of_one_run_or_a_sentence(small_one_run, tmp_path):
    assert 0 < fuzz(small_one_run, tmp_path, 20, seed=3) < 20


@pytest.mark.slow
def test_five_hundred_forged_documents_give_the_audit_of_one_run_or_a_sentence(small_one_run, tmp_path):
    assert 0 < fuzz(small_one_run, tmp_path, 500, seed=4) < 500
