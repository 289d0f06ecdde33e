"""Embeddings of images and sentences by a pretrained encoder, computed once and cached by content."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from dpsub.data.downloads import cache, file_digest, load_arrays, save_arrays
from dpsub.data.encoder_folders import check_encoder_folder

VIT = "google/vit-base-patch16-224-in21k"
"""The encoder of images that *Beyond Membership* uses, for `cifar10(encoder=VIT)`."""
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""The encoder of sentences that *Beyond Membership* uses, for `sst2(encoder=MINILM)`."""
AT_ONCE = 32


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
                digest.update(f"{path.relative_to(encoder).as_posix()} {file_digest(file)}\n".encode())
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
    try:
        make = getattr(of, "from_pretrained", of)
        return make(encoder, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise OSError(
            f"encoder must be a model on the Hugging Face hub, or a folder with one, got {encoder!r}: {error}. Without "
            "a network, download it elsewhere and give its folder, or use dpsub.data.load_features"
        ) from error
