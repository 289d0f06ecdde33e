"""Data files: tiny ones of the same layout, and a server on this machine in place of theirs."""

import gzip
import tarfile
import threading
import zipfile
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dpsub import data
from dpsub.data import files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "data"
    place.mkdir()
    monkeypatch.setenv("DPSUB_DATA", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder, and the address under which it is served."""
    place = tmp_path / "served"
    place.mkdir()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=place))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield place, f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def idx(values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return header + values.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(monkeypatch):
    """MNIST's four files with 30 and 12 images, by name, and the table of their hashes."""
    rng = np.random.default_rng(0)
    files = {}
    for part, count in (("train", 30), ("t10k", 12)):
        files[f"{part}-images-idx3-ubyte.gz"] = idx(rng.integers(256, size=(count, 28, 28)))
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(rng.integers(10, size=count))
    packed = {name: gzip.compress(raw, mtime=0) for name, raw in files.items()}

    def serve_at(address):
        table = {
            name: (
                files.Source(f"{address}/{name}", sha256(packed[name]).hexdigest()),
                sha256(raw).hexdigest(),
            )
            for name, raw in files.items()
        }
        monkeypatch.setattr(_files, "MNIST", table)

    return files, packed, serve_at


def test_mnist_is_downloaded_checked_and_kept(folder, server, mnist):
    place, address = server
    files, packed, serve_at = mnist
    serve_at(address)
    for name, content in packed.items():
        (place / name).write_bytes(content)
    task = data.mnist(n_train=10, n_aux=8)
    assert task.x_train.shape == (10, 1, 28, 28)
    assert [len(y) for y in (task.y_aux, task.y_test)] == [8, 12]
    assert 0 <= task.x_train.min() < task.x_train.max() <= 1
    test = np.frombuffer(files["t10k-images-idx3-ubyte.gz"], np.uint8, offset=16).reshape(12, 1, 28, 28)
    np.testing.assert_allclose(task.x_test * 255, test, atol=1e-4)
    assert (folder / "mnist" / "train-images-idx3-ubyte.gz").exists()
    for name in packed:
        (place / name).unlink()
    assert data.mnist(n_train=10, n_aux=8).fingerprint == task.fingerprint


def test_mnist_packed_anew_is_the_same(folder, mnist):
    files, _, serve_at = mnist
    serve_at("http://127.0.0.1:9")
    (folder / "mnist").mkdir()
    for name, raw in files.items():
        (folder / "mnist" / name).write_bytes(gzip.compress(raw, 1))
    assert len(data.mnist(n_train=10, n_aux=8).y_train) == 10


def test_wrong_checksums_are_named(folder, server, mnist):
    place, address = server
    files, packed, serve_at = mnist
    serve_at(address)
    name = "train-images-idx3-ubyte.gz"
    for other in packed:
        (place / other).write_bytes(packed[other])
    (place / name).write_bytes(gzip.compress(b"something else"))
    with pytest.raises(ValueError, match="checksum must be SHA-256 .*, as published.*by other means"):
        data.mnist(n_train=10, n_aux=8)
    assert not (folder / "mnist" / name).exists()
    (folder / "mnist" / name).write_bytes(gzip.compress(files[name] + b"x"))
    with pytest.raises(ValueError, match="must hold the published file, SHA-256 .* got .*: remove it"):
        data.mnist(n_train=10, n_aux=8)
    (folder / "mnist" / name).write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="must be a gzip file"):
        data.mnist(n_train=10, n_aux=8)


def test_no_network_says_what_to_put_where(folder, mnist):
    _, _, serve_at = mnist
    serve_at("http://127.0.0.1:9")
    expected = f"no download from 127.0.0.1:9 .*get http://127.0.0.1:9/train-.* put it at {folder}/mnist/train-images"
    with pytest.raises(ConnectionError, match=expected):
        data.mnist()


def test_file_that_is_no_longer_served_is_named(folder, server, mnist):
    mnist[2](server[1])
    with pytest.raises(ConnectionError, match="HTTPError"):
        data.mnist()


def test_data_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, server, mnist):
    mnist[2](server[1])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPSUB_DATA", str(tmp_path / "file"))
    with pytest.raises(OSError, match="must be a folder that can be written"):
        data.mnist()


def batches(place, count=(12,) * 5, test=10):
    rng = np.random.default_rng(1)
    place.mkdir(parents=True, exist_ok=True)
    for name, records in [*((f"data_batch_{i + 1}.bin", n) for i, n in enumerate(count)), ("test_batch.bin", test)]:
        raw = rng.integers(256, size=(records, 3073), dtype=np.uint8)
        raw[:, 0] %= 10
        raw.tofile(place / name)


def test_cifar10_is_read_from_its_binary_version(folder):
    batches(folder / "cifar-10-batches-bin")
    task = data.cifar10(n_train=20, n_aux=15, n_test=6)
    assert task.x_train.shape == (20, 3, 32, 32)
    assert [len(y) for y in (task.y_aux, task.y_test)] == [15, 6]
    assert task.name == "CIFAR-10 (60 of its 50,000 training images)"
    raw = np.fromfile(folder / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073)
    np.testing.assert_allclose(task.x_test[2, 1, 3] * 255, raw[2, 1 + 1024 + 3 * 32 : 1 + 1024 + 4 * 32], atol=1e-4)
    assert task.y_test.tolist() == raw[:6, 0].tolist()


def test_cifar10_is_downloaded_and_unpacked(folder, server, monkeypatch, tmp_path):
    place, address = server
    batches(tmp_path / "cifar-10-batches-bin")
    with tarfile.open(place / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    digest = sha256((place / "cifar.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setattr(_files, "CIFAR10", files.Source(f"{address}/cifar.tar.gz", digest))
    assert len(data.cifar10(n_train=20, n_aux=15).y_test) == 10
    (place / "cifar.tar.gz").unlink()
    (folder / "cifar-10-binary.tar.gz").unlink()
    assert len(data.cifar10(n_train=20, n_aux=15).y_test) == 10


def test_archive_is_unpacked_whole_or_not_at_all(folder, server, monkeypatch, tmp_path):
    place, address = server
    batches(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with tarfile.open(place / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    digest = sha256((place / "cifar.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setattr(_files, "CIFAR10", files.Source(f"{address}/cifar.tar.gz", digest))
    with pytest.raises(ValueError, match="got it without cifar-10-batches-bin/data_batch_4.bin"):
        data.cifar10()
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]

    def interrupted(path, target, **_):
        (target / "cifar-10-batches-bin").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "unpack_archive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.cifar10()
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_copies_of_a_batch_are_not_read_twice(folder):
    place = folder / "cifar-10-batches-bin"
    batches(place)
    (place / "data_batch_1 (copy).bin").write_bytes((place / "data_batch_1.bin").read_bytes())
    assert "(60 of" in data.cifar10(n_train=20, n_aux=15).name


def test_number_of_test_images_is_a_whole_number(folder):
    batches(folder / "cifar-10-batches-bin")
    for wrong in (-3, 2.5, True):
        with pytest.raises(ValueError, match="n_test must be"):
            data.cifar10(n_train=20, n_aux=15, n_test=wrong)


def test_bits_that_flipped_in_a_copy_are_noticed(tmp_path):
    path = tmp_path / "kept.npz"
    files.save_arrays(path, x=np.arange(50))
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        found = files.load_arrays(path)
        assert found is None or "x" not in found or (found["x"] == np.arange(50)).all()
    assert [file.name for file in tmp_path.iterdir()] == ["kept.npz"]


def test_data_folder_may_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DPSUB_DATA", "~/data")
    assert files.folder() == tmp_path / "data"


def test_other_layouts_of_cifar10_are_named(folder):
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    with pytest.raises(FileNotFoundError, match="must hold data_batch_1.bin … data_batch_5.bin and test_batch.bin"):
        data.cifar10()
    batches(place)
    (place / "data_batch_2.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="data_batch_2.bin must hold records of 1 . 3,072 bytes"):
        data.cifar10()


LINES = [("a fine film", 1), ("dull , dull", 0), ("what fun !", 1)]


@pytest.mark.parametrize("header", ["", "sentence\tlabel\n"])
def test_sentences_are_read_with_and_without_a_header(folder, header):
    (folder / "sst2").mkdir()
    text = header + "".join(f"{sentence} \t{label}\n" for sentence, label in LINES)
    (folder / "sst2" / "train.tsv").write_text(text)
    texts, labels = files.sentences("train")
    assert list(zip(texts, labels.tolist(), strict=True)) == LINES


def test_sst2_is_downloaded_and_unpacked(folder, server, monkeypatch):
    place, address = server
    with zipfile.ZipFile(place / "SST-2.zip", "w") as archive:
        for split in ("train", "dev", "original/train"):
            archive.writestr(f"SST-2/{split}.tsv", "sentence\tlabel\n" + "".join(f"{s}\t{y}\n" for s, y in LINES))
    digest = sha256((place / "SST-2.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(_files, "SST2", files.Source(f"{address}/SST-2.zip", digest))
    assert files.sentences("dev")[0] == [sentence for sentence, _ in LINES]


def test_sentences_may_hold_what_looks_like_a_line_end(folder):
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.tsv").write_bytes("\ufeffa\x85fine film\t1\r\ndull\t0\r\n".encode())
    assert files.sentences("train")[0] == ["a\x85fine film", "dull"]
    (folder / "sst2" / "train.tsv").write_bytes("na\xefve\t1\n".encode("latin-1"))
    with pytest.raises(ValueError, match="train.tsv must be a text in UTF-8"):
        files.sentences("train")


def test_other_layouts_of_sst2_are_named(folder):
    (folder / "sst2").mkdir()
    for text in ("", "a sentence\n", "a sentence\tfine\n", "a\tb\t1\n"):
        (folder / "sst2" / "train.tsv").write_text(text)
        with pytest.raises(ValueError, match="train.tsv must hold lines of a sentence, a tab, and a label 0 or 1"):
            files.sentences("train")


def purchases(folder, count=400, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.integers(2, size=(count, 601))
    table[:, 0] = rng.integers(1, 101, size=count)
    (folder / "purchase100").mkdir(exist_ok=True)
    np.savetxt(folder / "purchase100" / "dataset_purchase", table, fmt="%d", delimiter=",")
    return table


def test_purchase100_is_read_once_and_then_from_its_packed_copy(folder, monkeypatch):
    monkeypatch.setattr(data, "PURCHASE_TEST", 100)
    table = purchases(folder)
    task = data.purchase100(n_train=150, n_aux=100)
    assert task.x_train.shape == (150, 600)
    assert task.num_classes == 100
    rows = {(*row[1:], row[0] - 1) for row in table.tolist()}
    assert all((*x, y) in rows for x, y in zip(task.x_test.astype(int).tolist(), task.y_test.tolist(), strict=True))
    with monkeypatch.context() as without:
        without.setattr(files.pd, "read_csv", None)
        assert data.purchase100(n_train=150, n_aux=100).fingerprint == task.fingerprint
    (kept,) = (folder / "purchase100").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:500])
    assert data.purchase100(n_train=150, n_aux=100).fingerprint == task.fingerprint
    purchases(folder, seed=1)
    assert data.purchase100(n_train=150, n_aux=100).fingerprint != task.fingerprint


def test_purchase100_that_is_missing_or_something_else_is_named(folder):
    with pytest.raises(FileNotFoundError, match="get https://.*dataset_purchase.tgz, unpack it, and put"):
        data.purchase100()
    (folder / "purchase100").mkdir()
    for text in ("1,0,1\n", "a,b\n", "\n", "0," + ",".join(["1"] * 600) + "\n", "1," + ",".join(["2"] * 600) + "\n"):
        (folder / "purchase100" / "dataset_purchase").write_text(text)
        with pytest.raises(ValueError, match="must hold lines of a label"):
            data.purchase100()


def test_what_is_computed_goes_to_the_users_cache_where_the_data_folder_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPSUB_DATA", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert files.cache("embeddings") == tmp_path / "cache" / "dpsub" / "embeddings"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="DPSUB_DATA must name a folder that can be written"):
        files.cache("embeddings")
