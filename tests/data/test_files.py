"""Data files: tiny ones of the published layouts."""

import gzip

import numpy as np
import pytest

from dpsub import data
from dpsub.data import catalogue


def test_mnists_images_go_with_their_labels(folder, published_mnist):
    published_mnist.publish_at("http://127.0.0.1:9")
    (folder / "mnist").mkdir()
    for name, content in published_mnist.packed.items():
        (folder / "mnist" / name).write_bytes(content)
    task = data.mnist(n_train=10, n_aux=8)
    assert task.x_train.shape == (10, 1, 28, 28)
    assert len(task.y_aux) == 8
    np.testing.assert_allclose(task.x_test[:, 0] * 255, published_mnist.images["t10k"], atol=1e-4)
    assert task.y_test.tolist() == published_mnist.labels["t10k"].tolist()
    images, labels = (part["train"].tolist() for part in (published_mnist.images, published_mnist.labels))
    for x, y in ((task.x_train, task.y_train), (task.x_aux, task.y_aux)):
        for image, label in zip(np.rint(x[:, 0] * 255).tolist(), y, strict=True):
            assert labels[images.index(image)] == label


def test_mnist_packed_anew_is_the_same_and_anything_else_is_named(folder, published_mnist):
    published_mnist.publish_at("http://127.0.0.1:9")
    (folder / "mnist").mkdir()
    for name, raw in published_mnist.files.items():
        (folder / "mnist" / name).write_bytes(gzip.compress(raw, 1))
    assert len(data.mnist(n_train=10, n_aux=8).y_train) == 10
    name = "train-images-idx3-ubyte.gz"
    (folder / "mnist" / name).write_bytes(gzip.compress(published_mnist.files[name] + b"x"))
    with pytest.raises(ValueError, match=f"{name} must hold the published file, SHA-256 .* got .*: remove it"):
        data.mnist(n_train=10, n_aux=8)


def test_cifar10_is_read_from_its_binary_version(folder, write_cifar10):
    place = folder / "cifar-10-batches-bin"
    write_cifar10(place)
    task = data.cifar10(n_train=20, n_aux=15, n_test=6)
    assert task.x_train.shape == (20, 3, 32, 32)
    assert [len(y) for y in (task.y_aux, task.y_test)] == [15, 6]
    assert task.name == "CIFAR-10 (60 of its 50,000 training images)"
    raw = np.fromfile(place / "test_batch.bin", np.uint8).reshape(-1, 3073)
    np.testing.assert_allclose(task.x_test[2, 1, 3] * 255, raw[2, 1 + 1024 + 3 * 32 : 1 + 1024 + 4 * 32], atol=1e-4)
    assert task.y_test.tolist() == raw[:6, 0].tolist()
    pool = {bytes(row) for batch in place.glob("data_batch_?.bin") for row in np.fromfile(batch, "V3073").tolist()}
    for x, y in ((task.x_train, task.y_train), (task.x_aux, task.y_aux)):
        pixels = np.rint(x * 255).astype(np.uint8)
        assert {bytes([label]) + image.tobytes() for image, label in zip(pixels, y, strict=True)} <= pool


def test_other_layouts_of_cifar10_are_named(folder, write_cifar10):
    place = folder / "cifar-10-batches-bin"
    write_cifar10(place)
    batch = place / "data_batch_2.bin"
    batch.write_bytes(b"\xff" * 3073 + batch.read_bytes())
    with pytest.raises(ValueError, match="must be whole numbers >= 0 and <= 9, got 255"):
        data.cifar10(n_train=61, n_aux=0)


@pytest.mark.parametrize("header", ["", "sentence\tlabel\n"])
def test_sentences_are_read_with_and_without_a_header(folder, sentences, header):
    rows, lines = sentences
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.tsv").write_text(header + lines)
    texts, labels = catalogue.sentences("train")
    assert list(zip(texts, labels.tolist(), strict=True)) == rows


def test_sentences_may_hold_what_looks_like_a_line_end(folder):
    (folder / "sst2").mkdir()
    (folder / "sst2" / "train.tsv").write_bytes("\ufeffa\x85fine film\t1\r\ndull\t0\r\n".encode())
    assert catalogue.sentences("train")[0] == ["a\x85fine film", "dull"]
    (folder / "sst2" / "train.tsv").write_text("a sentence\tfine\n")
    with pytest.raises(ValueError, match="train.tsv must hold lines of a sentence, a tab, and a label 0 or 1"):
        catalogue.sentences("train")


def write_purchases(folder, count=400, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.integers(2, size=(count, 601))
    table[:, 0] = rng.integers(1, 101, size=count)
    (folder / "purchase100").mkdir(exist_ok=True)
    np.savetxt(folder / "purchase100" / "dataset_purchase", table, fmt="%d", delimiter=",")
    return table


def test_purchase100_is_read_from_its_file(folder, monkeypatch):
    monkeypatch.setattr(catalogue, "PURCHASE_TEST", 100)
    table = write_purchases(folder)
    task = data.purchase100(n_train=150, n_aux=100)
    assert task.x_train.shape == (150, 600)
    assert len(task.y_test) == task.num_classes == 100
    rows = {(*row[1:], row[0] - 1) for row in table.tolist()}
    parts = [
        {(*x, y) for x, y in zip(x.astype(int).tolist(), y.tolist(), strict=True)}
        for x, y in ((task.x_train, task.y_train), (task.x_aux, task.y_aux), (task.x_test, task.y_test))
    ]
    assert set.union(*parts) <= rows
    assert len(set.union(*parts)) == 350, "no record is in two parts"


def test_purchase100_that_is_missing_or_something_else_is_named(folder):
    with pytest.raises(FileNotFoundError, match="get https://.*dataset_purchase.tgz, unpack it, and put"):
        data.purchase100()
    (folder / "purchase100").mkdir()
    (folder / "purchase100" / "dataset_purchase").write_text("0," + ",".join(["1"] * 600) + "\n")
    with pytest.raises(ValueError, match="must hold .*lines of a label"):
        data.purchase100()
