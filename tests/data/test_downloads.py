"""Downloads, from a server on this machine in place of those that publish the files."""

import gzip
import tarfile
import zipfile
from hashlib import sha256

import pytest

from dpsub import data
from dpsub.data import catalogue, downloads


def test_mnist_is_downloaded_checked_and_kept(folder, server, published_mnist):
    place, address = server
    published_mnist.publish_at(address)
    for name, content in published_mnist.packed.items():
        (place / name).write_bytes(content)
    task = data.mnist(n_train=10, n_aux=8)
    for name, content in published_mnist.packed.items():
        assert (folder / "mnist" / name).read_bytes() == content
        (place / name).unlink()
    assert data.mnist(n_train=10, n_aux=8).fingerprint == task.fingerprint


def test_wrong_checksums_are_named(folder, server, published_mnist):
    place, address = server
    published_mnist.publish_at(address)
    name = "train-images-idx3-ubyte.gz"
    for other, content in published_mnist.packed.items():
        (place / other).write_bytes(content)
    (place / name).write_bytes(gzip.compress(b"something else"))
    with pytest.raises(ValueError, match=r"hash of downloaded file \(.*does not match the known hash"):
        data.mnist(n_train=10, n_aux=8)
    assert not (folder / "mnist" / name).exists()


def test_no_network_says_what_to_put_where(folder, published_mnist):
    published_mnist.publish_at("http://127.0.0.1:9")
    expected = f"no download from 127.0.0.1:9 .*get http://127.0.0.1:9/train-.* put it at {folder}/mnist/train-images"
    with pytest.raises(ConnectionError, match=expected):
        data.mnist()


@pytest.fixture
def archive(server, tmp_path, write_cifar10, monkeypatch):
    """Packs and serves CIFAR-10's binary version."""
    place, address = server

    def serve():
        write_cifar10(tmp_path / "cifar-10-batches-bin")
        with tarfile.open(place / "cifar.tar.gz", "w:gz") as packed:
            packed.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
        digest = sha256((place / "cifar.tar.gz").read_bytes()).hexdigest()
        monkeypatch.setattr(catalogue, "CIFAR10", downloads.Source(f"{address}/cifar.tar.gz", digest))
        return place / "cifar.tar.gz"

    return serve


def test_cifar10_is_downloaded_and_unpacked(folder, archive):
    served = archive()
    task = data.cifar10(n_train=20, n_aux=15)
    assert len(task.y_test) == 10
    served.unlink()
    (folder / "cifar-10-binary.tar.gz").unlink()
    assert data.cifar10(n_train=20, n_aux=15).fingerprint == task.fingerprint


def test_archive_is_unpacked_whole_or_not_at_all(folder, archive, monkeypatch):
    archive()

    def interrupted(path, target, **_):
        (target / "cifar-10-batches-bin").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads.shutil, "unpack_archive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.cifar10()
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_sst2_is_downloaded_and_unpacked(folder, server, sentences, monkeypatch):
    place, address = server
    rows, lines = sentences
    with zipfile.ZipFile(place / "SST-2.zip", "w") as packed:
        for split in ("train", "dev", "original/train"):
            packed.writestr(f"SST-2/{split}.tsv", "sentence\tlabel\n" + lines)
    digest = sha256((place / "SST-2.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(catalogue, "SST2", downloads.Source(f"{address}/SST-2.zip", digest))
    texts, labels = catalogue.sentences("dev")
    assert list(zip(texts, labels.tolist(), strict=True)) == rows


def test_what_is_computed_goes_to_the_users_cache_where_the_data_folder_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPSUB_DATA", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert downloads.cache("embeddings") == tmp_path / "cache" / "dpsub" / "embeddings"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="DPSUB_DATA must name a folder that can be written"):
        downloads.cache("embeddings")
