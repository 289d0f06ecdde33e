"""Embeddings by a pretrained encoder, computed once and cached by content; and what an encoder's folder may hold."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from dpsub.data.downloads import cache, load_arrays, save_arrays

VIT = "google/vit-base-patch16-224-in21k"
"""The encoder of images that *Beyond Membership* uses, for `cifar10(encoder=VIT)`."""
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""The encoder of sentences that *Beyond Membership* uses, for `sst2(encoder=MINILM)`."""
AT_ONCE = 32
CAN_RUN_CODE = {".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pkl", ".pt", ".pth"}
# Keys of configurations whose values name classes to import. A class of the libraries' own begins with a capital.
CLASSES = ("activation_function", "activation_fn", "tokenizer_class", "type", "types")
OWN = re.compile(r"(sentence_transformers|torch\.nn)(\.[A-Za-z_]\w*)*\.[A-Z]\w*")


def of_images(images: NDArray[np.uint8], encoder: str, device: str = "cpu") -> NDArray[np.float32]:
    """Embed images, (n, 3, height, width) → (n, d): the class token of the last layer, the input of a classifier."""

    def embed() -> NDArray[np.float32]:
        transformers = _library("transformers", encoder)
        processor = _pretrained(transformers.AutoImageProcessor, encoder)
        model = _pretrained(transformers.AutoModel, encoder, use_safetensors=True).eval().to(device)
        parts = []
        for start in tqdm(range(0, len(images), AT_ONCE), desc=f"embedding with {encoder}", unit=" batches"):
            batch = list(images[start : start + AT_ONCE].transpose(0, 2, 3, 1))
            inputs = processor(images=batch, return_tensors="pt").to(device)
            with torch.no_grad():
                parts.append(model(**inputs).last_hidden_state[:, 0].float().cpu().numpy())
        return np.concatenate(parts)

    return _kept("images", encoder, [repr(images.shape).encode(), images.tobytes()], embed)


def of_sentences(texts: list[str], encoder: str, device: str = "cpu") -> NDArray[np.float32]:
    """Embed n sentences → (n, d), pooled and normalised as the encoder's configuration says."""

    def embed() -> NDArray[np.float32]:
        library = _library("sentence_transformers", encoder)
        weights = {"use_safetensors": True}
        model = _pretrained(library.SentenceTransformer, encoder, device=device, model_kwargs=weights)
        return np.asarray(model.encode(texts, show_progress_bar=True), dtype=np.float32)

    return _kept("sentences", encoder, [text.encode() for text in texts], embed)


def _kept(
    kind: str, encoder: str, content: list[bytes], embed: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    digest = sha256()
    for part in (kind.encode(), _identity(encoder), *content):
        digest.update(len(part).to_bytes(8, "little") + part)
    path = cache("embeddings") / f"{digest.hexdigest()[:32]}.npz"
    kept = load_arrays(path, "embeddings")
    if kept is None:
        kept = {"embeddings": embed()}
        save_arrays(path, **kept)
    return np.asarray(kept["embeddings"], dtype=np.float32)


def _identity(encoder: str) -> bytes:
    """A digest of all files of an encoder in a folder, or the name of one on the hub, which needs no network."""
    if not os.path.isdir(encoder):
        return encoder.encode()
    digest = sha256()
    for path in sorted(Path(encoder).rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                content = file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(encoder).as_posix()} {content}\n".encode())
    return digest.digest()


def _library(name: str, encoder: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ImportError(
            f"encoder {encoder!r} needs the package {name.replace('_', '-')}: pip install 'dpsub[embeddings]'"
        ) from None


def _pretrained(of: Any, encoder: str, **options: Any) -> Any:
    if os.path.isdir(encoder):
        check_encoder_folder(encoder)
    return getattr(of, "from_pretrained", of)(encoder, trust_remote_code=False, **options)


def check_encoder_folder(folder: str) -> None:
    """Check that loading an encoder from this folder runs no code that is not the libraries' own.

    `trust_remote_code=False` does not stop sentence-transformers, which imports the classes that a JSON file names and
    passes on what else it says.

    Raises:
        ValueError: if the folder holds weights that can run code and none that cannot, or if a JSON file asks for code.
    """
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() in CAN_RUN_CODE and not any(path.parent.glob("*.safetensors")):
            raise ValueError(
                f"encoder must be a folder with weights as *.safetensors, got {folder} with {name}, a format that can "
                "run code: convert it"
            )
        if path.suffix.lower() == ".json":
            for asked in _asks_for_code(json.loads(path.read_bytes())):
                raise ValueError(
                    f"encoder must not ask for code of its own, got {folder}, whose {name} does: {asked}; use another "
                    "encoder, or compute features yourself for dpsub.data.load_features"
                )


def _asks_for_code(node: Any, names_classes: bool = False) -> Iterator[str]:
    """What asks for code in a part of a JSON document, and whether the part stands below a key that names classes."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "trust_remote_code" and value:
                yield key
            yield from _asks_for_code(value, names_classes or key in CLASSES)
    elif isinstance(node, list):
        for value in node:
            yield from _asks_for_code(value, names_classes)
    elif names_classes and isinstance(node, str) and "." in node and not OWN.fullmatch(node):
        yield f"the class {node!r:.80}"
