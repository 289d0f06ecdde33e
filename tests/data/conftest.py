import gzip
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import numpy as np
import pytest

from dpsub.data import catalogue


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder of its own, and a cache."""
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
    """A folder, and the address under which this machine serves it."""
    place = tmp_path / "served"
    place.mkdir()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=place))
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield place, f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


class PublishedMnist(NamedTuple):
    """MNIST's four files with 30 and 12 images, by name: their content, packed and not, and their labels."""

    files: dict[str, bytes]
    packed: dict[str, bytes]
    labels: dict[str, np.ndarray]
    images: dict[str, np.ndarray]
    publish_at: Callable[[str], None]


def idx(values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    return header + values.astype(np.uint8).tobytes()


@pytest.fixture
def published_mnist(monkeypatch):
    rng = np.random.default_rng(0)
    images = {part: rng.integers(256, size=(count, 28, 28)) for part, count in (("train", 30), ("t10k", 12))}
    labels = {part: rng.integers(10, size=len(x)) for part, x in images.items()}
    found = {f"{part}-images-idx3-ubyte.gz": idx(x) for part, x in images.items()}
    found |= {f"{part}-labels-idx1-ubyte.gz": idx(y) for part, y in labels.items()}
    packed = {name: gzip.compress(raw, mtime=0) for name, raw in found.items()}

    def publish_at(address):
        """Let dpsub look for them there, with their own hashes."""
        table = {name: tuple(sha256(of[name]).hexdigest() for of in (packed, found)) for name in found}
        monkeypatch.setattr(catalogue, "MNIST", table)
        monkeypatch.setattr(catalogue, "MNIST_MIRROR", address)

    return PublishedMnist(found, packed, labels, images, publish_at)


@pytest.fixture
def write_cifar10():
    """Writes the six files of CIFAR-10's binary version into a folder, with few records."""

    def write(place, records=12, test_records=10):
        rng = np.random.default_rng(1)
        place.mkdir(parents=True, exist_ok=True)
        sizes = {f"data_batch_{i}.bin": records for i in range(1, 6)} | {"test_batch.bin": test_records}
        for name, size in sizes.items():
            raw = rng.integers(256, size=(size, 3073), dtype=np.uint8)
            raw[:, 0] %= 10
            raw.tofile(place / name)

    return write


LINES = [("a fine film", 1), ("dull , dull", 0), ("what fun !", 1)]


@pytest.fixture
def sentences():
    """Sentences and labels, and the lines of a file that holds them."""
    return LINES, "".join(f"{sentence} \t{label}\n" for sentence, label in LINES)
