"""The tasks that dpsub knows by name, and tasks from files of features.

Each data set has one place here: where its file is published, its reader, and the function that makes a task of it.
"""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.data import embeddings
from dpsub.data.downloads import Array, Source, downloaded, folder, local, unpacked
from dpsub.data.embeddings import MINILM
from dpsub.data.frames import from_frame
from dpsub.data.tasks import Task, drawn, from_arrays

PURCHASE_TEST = 10_000
COUNT = partial(checks.whole, at_least=0)


@checks.checked("n_train", "seed")
def digits(n_train: int = 500, seed: int = 0) -> Task:
    """Handwritten digits, 8 × 8 pixels: real data that comes with scikit-learn and needs no download.

    500 records are auxiliary and the rest are for testing. Pixels are scaled to [0, 1]. Pixels that are constant over
    the private records are dropped: their parameters would never move, and a canary there would be a worst case.

    Args:
        n_train: number of private records, 2 … 1,296 of the 1,797.
        seed: decides which records are private, auxiliary and test.

    Raises:
        ValueError: if an argument is out of range.

    Source: Alpaydin and Kaynak (1998), *Optical Recognition of Handwritten Digits*, UCI.
    """
    from sklearn.datasets import load_digits  # its import takes a second

    x, y = load_digits(return_X_y=True)
    train, aux, test = _parts(len(y), "digits", n_train, 500, seed)
    varies = np.ptp(x[train], axis=0) > 0
    x, pixels = x[:, varies] / 16, varies.reshape(8, 8)
    return Task(x[train], y[train], x[aux], y[aux], x[test], y[test], 10, "digits", pixels)


@checks.checked("n_train", "seed")
def breast_cancer(n_train: int = 300, seed: int = 0) -> Task:
    """Breast cancer in Wisconsin: 30 measurements of cell nuclei a person. It comes with scikit-learn, like `digits`.

    The label is 0 for a malignant tumour and 1 for a benign one. 150 records are auxiliary and the rest are for
    testing. Each feature is standardised by its mean and standard deviation over the auxiliary records, so the scale
    says nothing about the private ones. The task's `columns` have names.

    Args:
        n_train: number of private records, 2 … 418 of the 569.
        seed: decides which records are private, auxiliary and test.

    Raises:
        ValueError: if an argument is out of range.

    Source: Wolberg, Mangasarian, Street and Street (1995), *Breast Cancer Wisconsin (Diagnostic)*, UCI.
    """
    from sklearn.datasets import load_breast_cancer

    whole = load_breast_cancer(as_frame=True).frame
    train, aux, test = (whole.iloc[rows] for rows in _parts(len(whole), "records", n_train, 150, seed))
    return from_frame(train, label="target", aux=aux, test=test, name="breast cancer")


# Mirror and hashes: TensorFlow Datasets. The second hash is of the decompressed file: a recompressed copy has it too.
MNIST_MIRROR = "https://storage.googleapis.com/cvdf-datasets/mnist"
MNIST = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def idx(name: str) -> Array:
    """One of MNIST's four files: images (n, 28, 28) or labels (n,), uint8."""
    packed, content = MNIST[name]
    path = folder() / "mnist" / name
    if not path.is_file():
        path = downloaded(Source(f"{MNIST_MIRROR}/{name}", packed), Path("mnist", name))
    try:
        raw = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raw = b""  # which is not the published file either
    if (got := sha256(raw).hexdigest()) != content:
        raise ValueError(
            f"{path} must hold the published file, SHA-256 {content} when decompressed, got {got}: remove it to "
            "download it again"
        )
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@checks.checked("n_train", "n_aux", "seed")
def mnist(n_train: int = 500, n_aux: int = 500, seed: int = 0) -> Task:
    """MNIST: handwritten digits, images (1, 28, 28) scaled to [0, 1]. A download of 12 MB.

    Args:
        n_train, n_aux: numbers of private and auxiliary records, drawn from the 60,000 training images. All test images
            are in the task.
        seed: decides which records are private and which are auxiliary.

    Raises:
        ConnectionError: if a file is missing and cannot be downloaded.
        OSError: if a file cannot be written.
        ValueError: if a file is not the published one, or n_train and n_aux are too large.

    Source: LeCun, Cortes and Burges; hashes as published with TensorFlow Datasets.
    """
    x, y, x_test, y_test = (
        idx(f"{part}-{kind}-ubyte.gz") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    )
    return _scaled(drawn("MNIST", 10, (x[:, None], y), (x_test[:, None], y_test), n_train, n_aux, seed))


CIFAR10 = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR10_FOLDER = "cifar-10-batches-bin"


def cifar_records(*names: str) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,), uint8, of batches of the binary version, by name: "data_batch_1"."""
    place = folder() / CIFAR10_FOLDER
    if not place.is_dir():
        place = unpacked(CIFAR10, "cifar-10-binary.tar.gz") / CIFAR10_FOLDER
    # A record is its label, then its pixels by channel.
    records = np.concatenate([np.fromfile(place / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


@checks.checked("n_train", "n_aux", "seed", n_test=COUNT)
def cifar10(
    n_train: int = 500,
    n_aux: int = 500,
    seed: int = 0,
    *,
    encoder: str | None = None,
    n_test: int | None = None,
    device: str = "cpu",
) -> Task:
    """CIFAR-10: images (3, 32, 32) scaled to [0, 1], or their embeddings by an encoder. A download of 170 MB.

    Args:
        n_train, n_aux: numbers of private and auxiliary records, drawn from the training images.
        seed: decides which records are private and which are auxiliary.
        encoder: a vision transformer on the Hugging Face hub, or a folder that holds one. The paper uses `data.VIT`,
            ViT-B/16 pretrained on ImageNet-21k, with 768 features. Encoders need `pip install dpsub[embeddings]`.
            Weights are read from *.safetensors only, and a folder that asks for code of its own is refused. Embeddings
            are computed once and kept in the data folder, or in the user's cache if that is read-only. None: the images
            themselves.
        n_test: how many test images to keep, from the first on; all by default. An encoder embeds these too.
        device: where the encoder runs.

    Raises:
        ConnectionError, OSError, ValueError: as in `mnist`; OSError also if the encoder cannot be loaded, ValueError
            also if its folder asks for code of its own.
        ImportError: if the encoder's library is not installed.

    Source: Krizhevsky (2009); hash as published with TensorFlow Datasets. *Beyond Membership*, section 5.
    """
    x, y = cifar_records(*(f"data_batch_{i}" for i in range(1, 6)))
    x_test, y_test = (part[:n_test] for part in cifar_records("test_batch"))
    name = "CIFAR-10" if len(y) == 50_000 else f"CIFAR-10 ({len(y):,} of its 50,000 training images)"
    task = drawn(name, 10, (x, y), (x_test, y_test), n_train, n_aux, seed)
    if encoder is None:
        return _scaled(task)
    parts = (task.x_train, task.x_aux, task.x_test)
    embedded = embeddings.of_images(np.concatenate(parts).astype(np.uint8), encoder, device)
    x_train, x_aux, x_test = np.split(embedded, np.cumsum([len(part) for part in parts])[:-1])
    return replace(task, x_train=x_train, x_aux=x_aux, x_test=x_test, name=f"{name} embedded by {encoder}")


SST2 = Source(
    "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
    "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
)


def sentences(split: str) -> tuple[list[str], Array]:
    """The sentences and labels of SST-2's "train" or "dev" split: lines `sentence<TAB>label`, a header optional."""
    path = folder() / "sst2" / f"{split}.tsv"
    if not path.is_file():
        path = unpacked(SST2, "SST-2.zip") / "SST-2" / f"{split}.tsv"
    text = path.read_text(encoding="utf-8-sig")
    rows = [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()]
    rows = rows[1:] if rows and rows[0] == ["sentence", "label"] else rows
    if not rows or any(len(row) != 2 or row[1] not in ("0", "1") for row in rows):
        raise ValueError(f"{path} must hold lines of a sentence, a tab, and a label 0 or 1")
    return [row[0].strip() for row in rows], np.array([int(row[1]) for row in rows])


@checks.checked("n_train", "n_aux", "seed")
def sst2(
    n_train: int = 5_000, n_aux: int = 1_500, seed: int = 0, *, encoder: str = MINILM, device: str = "cpu"
) -> Task:
    """SST-2: embeddings of sentences from film reviews, positive or negative. A download of 7 MB.

    Args:
        n_train, n_aux: numbers of private and auxiliary records, drawn from the training sentences. The test records
            are the development set, since the test set is published without labels.
        seed: decides which records are private and which are auxiliary.
        encoder: a Sentence-BERT model on the Hugging Face hub, or a folder that holds one. The default is the paper's:
            all-MiniLM-L6-v2, with 384 features of unit norm. Encoders need `pip install dpsub[embeddings]`. Weights are
            read from *.safetensors only, and a folder that asks for code of its own is refused. Embeddings are computed
            once and kept in the data folder, or in the user's cache if that is read-only.
        device: where the encoder runs.

    Raises:
        ConnectionError, OSError, ValueError: as in `mnist`; OSError also if the encoder cannot be loaded, ValueError
            also if its folder asks for code of its own.
        ImportError: if the encoder's library is not installed.

    Source: Socher et al. (2013), as in GLUE; hash as published with Hugging Face's datasets. *Beyond Membership*,
    section 6.3.
    """
    texts, y = sentences("train")
    test_texts, y_test = sentences("dev")
    embedded = embeddings.of_sentences(texts + test_texts, encoder, device)
    x, x_test = np.split(embedded, [len(texts)])
    size = "" if len(y) == 67_349 else f" ({len(y):,} sentences)"
    name = f"SST-2{size} embedded by {encoder}"
    return drawn(name, 2, (x, y), (x_test, y_test), n_train, n_aux, seed)


PURCHASE100 = "https://www.comp.nus.edu.sg/~reza/files/dataset_purchase.tgz"


def purchases() -> tuple[Array, Array]:
    """Purchase100's features (n, 600) and labels (n,) from 0, uint8.

    The file is not downloaded, since no hash of it is published.
    """
    path = folder() / "purchase100" / "dataset_purchase"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must be a file: get {PURCHASE100}, unpack it, and put dataset_purchase there (DPSUB_DATA names "
            "the data folder), or use dpsub.data.purchase100_like, which needs no file"
        )
    table = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    x, y = table[:, 1:], table[:, 0]
    if x.shape[1] != 600 or x.max(initial=0) > 1 or y.min() < 1 or y.max() > 100:
        raise ValueError(f"{path} must hold lines of a label from 1 to 100 and 600 zeros and ones, got {table.shape}")
    return x, y - 1


@checks.checked("n_train", "n_aux", "seed")
def purchase100(n_train: int = 50_000, n_aux: int = 50_000, seed: int = 0) -> Task:
    """Purchase100: 600 binary features of each shopper, in 100 classes. You have to download the file yourself.

    Args:
        n_train, n_aux: numbers of private and auxiliary records, drawn from the 197,324 without 10,000 for testing.
        seed: decides which records are private, auxiliary and test.

    Raises:
        FileNotFoundError: if the file is missing; the message says where to get it.
        ValueError: if the file has another layout, or n_train and n_aux are too large.

    Source: Shokri et al. (2017), section VI.A; *Beyond Membership*, section 5.
    """
    x, y = purchases()
    order = stream(seed, "data", 1).permutation(len(y))
    pool, test = np.split(order, [max(0, len(y) - PURCHASE_TEST)])
    return drawn("Purchase100", 100, (x[pool], y[pool]), (x[test], y[test]), n_train, n_aux, seed)


@checks.checked("n_train", "n_aux", "seed")
def purchase100_like(n_train: int = 50_000, n_aux: int = 50_000, seed: int = 0) -> Task:
    """Synthetic shoppers in the shape of Purchase100: 600 binary features, 100 classes found by clustering.

    A shopper has 20 standard normal tastes and buys each of 600 goods independently. The logit of a purchase is the
    good's popularity plus a linear function of the tastes. As in Purchase100, the classes come from clustering the
    purchases, here by k-means fitted to the first 20,000 shoppers.

    Args:
        n_train, n_aux: numbers of private and auxiliary records; 10,000 more are for testing.
        seed: for the shoppers, the clustering, and the choice of private and auxiliary records.

    Raises:
        ValueError: if an argument is out of range.

    Source: dpsub's own; the shape follows Shokri et al. (2017), section VI.A.
    """
    from sklearn.cluster import KMeans

    rng = stream(seed, "data", 2)
    total = n_train + n_aux + PURCHASE_TEST
    popularity = rng.normal(-2.0, 1.0, size=600).astype(np.float32)
    suits = rng.normal(0.0, 0.6, size=(20, 600)).astype(np.float32)
    x = np.empty((total, 600), dtype=np.uint8)
    for start in range(0, total, 10_000):
        tastes = rng.standard_normal((min(10_000, total - start), 20), dtype=np.float32)
        likely = 1 / (1 + np.exp(-(popularity + tastes @ suits)))
        x[start : start + 10_000] = rng.random(likely.shape, dtype=np.float32) < likely
    clusters = KMeans(100, init="random", n_init=1, max_iter=20, random_state=int(rng.integers(2**31)))
    y = clusters.fit(x[:20_000].astype(np.float32)).predict(x.astype(np.float32))
    (x, x_test), (y, y_test) = (np.split(of, [n_train + n_aux]) for of in (x, y))
    name = "made-up shoppers (stand-in for Purchase100)"
    return drawn(name, 100, (x, y), (x_test, y_test), n_train, n_aux, seed)


@checks.checked("n_train", "n_aux", "seed", n_test=COUNT)
def random_images(
    n_train: int = 500,
    n_aux: int = 500,
    seed: int = 0,
    *,
    n_test: int = 1_000,
    size: int = 32,
    channels: int = 3,
    num_classes: int = 10,
) -> Task:
    """Images of random pixels with random labels, in the shape of CIFAR-10 by default.

    Each pixel is one of 256 levels, scaled to [0, 1], and each label one of the classes, all independent and uniform.
    There is nothing to learn but the records themselves.

    Args:
        n_train, n_aux, n_test: numbers of private, auxiliary and test records. CIFAR-10 has 50,000 for the first two
            together and 10,000 for testing, with 12 kB a record.
        seed: for pixels and labels.
        size: of the images, in pixels a side.
        channels: of the images.
        num_classes: at least 2.

    Raises:
        ValueError: if an argument is out of range.

    Source: *Tight Auditing*, section 6.1 and appendix B, "a randomly initialized dataset".

    >>> random_images(n_train=5, n_aux=2, n_test=0)
    Task('random images': 5 private, 2 auxiliary, 0 test records of shape (3, 32, 32), 10 classes)
    """
    total, rng = n_train + n_aux + n_test, stream(seed, "data", 3)
    x: Array = rng.integers(256, size=(total, channels, size, size), dtype=np.uint8) / np.float32(255)
    y = rng.integers(num_classes, size=total)
    train, aux, test = np.split(np.arange(total), [n_train, n_train + n_aux])
    return Task(x[train], y[train], x[aux], y[aux], x[test], y[test], num_classes, "random images")


@checks.checked("n_train", "n_aux", "seed")
def load_features(
    path: str | os.PathLike[str],
    *,
    n_train: int = 500,
    n_aux: int = 500,
    seed: int = 0,
    name: str | None = None,
    stand_in_for: str | None = None,
) -> Task:
    """A task from a file of features, such as the outputs of a network's penultimate layer.

    Private and auxiliary records are drawn from one pool. No auxiliary record has the features of a private one.

    Args:
        path: an .npz file, relative to the current folder or to the data folder (`DPSUB_DATA`). The pool is `x_train`
            (n, d) and `y_train` (n,), or `x_private` and `y_private`; the test records are `x_test` and `y_test`. Other
            arrays are ignored.
        n_train: number of private records.
        n_aux: number of auxiliary records.
        seed: decides which records are private and which are auxiliary.
        name: the task's name in figures and stored results; by default the file's name without its suffix.
        stand_in_for: the features that these replace, if any; it becomes part of the name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file has another layout or too few records.
    """
    file = local(path)
    try:
        with open(file, "rb") as opened, np.load(opened) as found:
            pool = "private" if "x_train" not in found and "x_private" in found else "train"
            needed = [f"{array}_{part}" for part in (pool, "test") for array in "xy"]
            x, y, x_test, y_test = (found[array] for array in needed)  # each is read when it is asked for
    except Exception as error:  # NumPy and zipfile have many for a damaged file
        raise ValueError(
            f"path must be an .npz file of plain arrays x_train, y_train, x_test and y_test, got {file}: {error}"
        ) from error
    whole = from_arrays(x, y, x_test=x_test, y_test=y_test)
    name = file.stem if name is None else str(name)
    name += "" if stand_in_for is None else f" (stand-in for {stand_in_for})"
    test = (whole.x_test, whole.y_test)
    return drawn(name, whole.num_classes, (whole.x_train, whole.y_train), test, n_train, n_aux, seed)


def _parts(count: int, things: str, n_train: int, n_aux: int, seed: int) -> list[NDArray[np.int64]]:
    """The indices of the private, auxiliary and test records."""
    most = count - n_aux - 1
    if n_train > most:
        raise ValueError(
            f"n_train must be <= {most} of the {count} {things}, which leaves some to test on, got {n_train}"
        )
    return np.split(stream(seed, "data").permutation(count), [n_train, n_train + n_aux])


def _scaled(task: Task) -> Task:
    """The task with its pixels scaled from 0 … 255 to [0, 1]."""
    parts = {name: getattr(task, name) / np.float32(255) for name in ("x_train", "x_aux", "x_test")}
    return replace(task, **parts)
