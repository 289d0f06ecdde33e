"""Readers of the published files of MNIST, CIFAR-10, SST-2 and Purchase100."""

from __future__ import annotations

import gzip
import zlib
from hashlib import file_digest, sha256
from pathlib import Path

import numpy as np
import pandas as pd

from dpsub.data.downloads import Array, Source, cache, downloaded, folder, load_arrays, save_arrays, unpacked

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
CIFAR10 = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR10_FOLDER = "cifar-10-batches-bin"
SST2 = Source(
    "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
    "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
)
PURCHASE100 = "https://www.comp.nus.edu.sg/~reza/files/dataset_purchase.tgz"


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


def cifar_records(*names: str) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,), uint8, of batches of the binary version, by name: "data_batch_1"."""
    place = folder() / CIFAR10_FOLDER
    if not place.is_dir():
        place = unpacked(CIFAR10, "cifar-10-binary.tar.gz") / CIFAR10_FOLDER
    # A record is its label, then its pixels by channel.
    records = np.concatenate([np.fromfile(place / f"{name}.bin", np.uint8).reshape(-1, 3073) for name in names])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


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


def purchases() -> tuple[Array, Array]:
    """Purchase100's features (n, 600) and labels (n,) from 0, uint8.

    The text is parsed once; later calls read a packed copy. The file is not downloaded, since no hash of it is
    published.
    """
    path = folder() / "purchase100" / "dataset_purchase"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must be a file: get {PURCHASE100}, unpack it, and put dataset_purchase there (DPSUB_DATA names "
            "the data folder), or use dpsub.data.purchase100_like, which needs no file"
        )
    with open(path, "rb") as text:
        digest = file_digest(text, "sha256").hexdigest()
    packed = cache("purchase100") / f"{digest[:16]}.npz"
    kept = load_arrays(packed, "x", "y")
    if kept is not None:
        return np.unpackbits(kept["x"].astype(np.uint8, copy=False), axis=1, count=600), kept["y"]
    table = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    x, y = table[:, 1:], table[:, 0]
    if x.shape[1] != 600 or x.max(initial=0) > 1 or y.min() < 1 or y.max() > 100:
        raise ValueError(f"{path} must hold lines of a label from 1 to 100 and 600 zeros and ones, got {table.shape}")
    save_arrays(packed, x=np.packbits(x, axis=1), y=y - 1)
    return x, y - 1
