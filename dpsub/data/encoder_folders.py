"""What a folder with an encoder may hold: no code, no weights that can run code, no names of foreign code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CODE = {".py", ".pyc", ".pyd", ".so", ".dll", ".dylib"}
CAN_RUN_CODE = {".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pkl", ".pt", ".pth"}
# Keys of configurations whose values name classes to import. A class of the libraries' own begins with a capital.
CLASSES = ("activation_function", "activation_fn", "tokenizer_class", "type", "types")
OWN = re.compile(r"(sentence_transformers|torch\.nn)(\.[A-Za-z_]\w*)*\.[A-Z]\w*")


def check_encoder_folder(folder: str) -> None:
    """Check that loading an encoder from this folder runs no code of the folder's own.

    Raises:
        ValueError: if the folder holds code, or weights that can run code and none that cannot, or a configuration
            that asks for code.
    """
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            continue
        if not path.is_file():
            raise ValueError(f"encoder must be a folder of regular files, got {folder} with {name}: remove it")
        if path.suffix.lower() in CODE:
            raise ValueError(f"encoder must be a folder without code, got {folder} with {name}: remove it")
        if path.suffix.lower() in CAN_RUN_CODE and not any(path.parent.glob("*.safetensors")):
            raise ValueError(
                f"encoder must be a folder with weights as *.safetensors, got {folder} with {name}, a format that can "
                "run code: convert it"
            )
        if path.suffix.lower() == ".json":
            for asked in _asks_for_code(path):
                raise ValueError(
                    f"encoder must not ask for code of its own, got {folder}, whose {name} does: {asked}; use another "
                    "encoder, or compute features yourself for dpsub.data.load_features"
                )


def _asks_for_code(path: Path) -> Iterator[str]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"encoder must be a folder with JSON files, got {path}, which is not one: {error}") from None
    nodes: list[Any] = [document]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
            if node.get("auto_map"):
                yield f"auto_map {node['auto_map']!r:.80}"
            if node.get("trust_remote_code"):
                yield "trust_remote_code"
            for key in CLASSES:
                named = node.get(key)
                for value in named.values() if isinstance(named, dict) else [named]:
                    if isinstance(value, str) and "." in value and not OWN.fullmatch(value):
                        yield f"{key} {value!r:.80}"
    if path.name == "modules.json":
        for module in document if isinstance(document, list) else [document]:
            kind, place = (module.get(key) if isinstance(module, dict) else None for key in ("type", "path"))
            if not isinstance(kind, str) or not OWN.fullmatch(kind):
                yield f"the module {kind!r:.80}"
            if not isinstance(place, str) or ".." in Path(place).parts or Path(place).is_absolute():
                yield f"the module's folder {place!r:.80}"
