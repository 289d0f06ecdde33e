"""The layout of a stored audit: which arrays and files it has. It follows from the attributes and the documents."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dpsub.audits.observers import BY_NAME, OF_ALL_RUNS, RESERVED, Observer, Score, are_of_some_runs
from dpsub.audits.one_run_plans import MODEL, is_of_one_run
from dpsub.audits.plans import Cut
from dpsub.audits.step_plans import EACH_STEP, is_of_steps
from dpsub.audits.storage.documents import EMPTY, GROUP, NUMBER, OTHER, VARIABLE, Array, Json, read_array, same
from dpsub.audits.storage.files import DOCUMENT, LOCK, PARTIAL
from dpsub.audits.storage.one_run_layout import arrays_of_one_run
from dpsub.audits.storage.recorded import check_files, check_recorded
from dpsub.audits.storage.recorded_one_run import check_one_run
from dpsub.audits.storage.recorded_training import check_training
from dpsub.audits.training_plans import is_of_training, training_cut

GROUPS = ("shards", "canary")
GROUPS_OF_TRAINING = ("shards",)
CANARIES = ("canary/z", "canary/z_prime")
LEARNED = ("canary/coefficients", "canary/directions")  # of a score, in the order of `Learned`
BIT_EACH_RUN, BIT_EACH_STEP = ("run",), ("run", "step")
MOST_BYTES = 2**26  # of a document: far more than dpsub writes


class Layout(NamedTuple):
    """The arrays of an audit, and the files that they consist of.

    Attributes:
        cut: how its runs are cut into shards.
        variables: the arrays that shards fill, by name.
        others: the indexes and canaries, by name.
        groups: the groups below the root.
    """

    cut: Cut
    variables: dict[str, Array]
    others: dict[str, Array]
    groups: tuple[str, ...] = GROUPS

    @property
    def rows(self) -> str:
        """The dimension of the models."""
        return MODEL if MODEL in (self.variables["bit"].dims or ()) else "run"

    @property
    def of_training(self) -> bool:
        """Whether the audit is of a training function, whose runs may fail."""
        return self.groups == GROUPS_OF_TRAINING

    @property
    def documents(self) -> dict[str, Json]:
        """The documents of all arrays and groups but the root, by their file's name."""
        arrays = {name: array.document for name, array in (self.variables | self.others).items()}
        return {f"{name}/{DOCUMENT}": node for name, node in (arrays | dict.fromkeys(self.groups, GROUP)).items()}

    def chunk_of(self, file: str, arrays: dict[str, Array]) -> tuple[str, tuple[int, ...]] | None:
        """The array and the indices of the chunk in this file, or None if it is no chunk of these arrays."""
        name, _, rest = file.partition("/c/")
        place = arrays[name].place(f"c/{rest}") if name in arrays else None
        return None if place is None else (name, place)

    def chunks_of_shard(self, number: int) -> set[str]:
        """The files with the numbers of one shard."""
        shard, found = self.cut.shard(number), set()
        for name, array in self.variables.items():
            dims = array.dims or ()
            first = {"repeat": shard.repeat, self.rows: number % self.cut.shards_each}
            if self.rows in dims or shard.start == 0:  # observers of only some runs observe those of the first block
                found.add("/".join([name, "c", *(str(first.get(dim, 0)) for dim in dims)]))
        return found

    def most_bytes(self, file: str) -> int:
        """The most bytes that a file of this name has, compressed or not."""
        found = self.chunk_of(file, self.variables | self.others)
        if found is None:
            return MOST_BYTES
        size = (self.variables | self.others)[found[0]].chunk_bytes
        return size + size // 64 + 1024

    def owns(self, file: str) -> bool:
        """Whether a writer of this audit makes a file of this name, if only for a moment."""
        name = file.removesuffix(PARTIAL)
        shard = re.fullmatch(f"shards/({NUMBER})/{DOCUMENT}", name)
        return (
            file == LOCK
            or name == DOCUMENT
            or name in self.documents
            or (shard is not None and int(shard[1]) < self.cut.shards)
            or self.chunk_of(name, self.variables | self.others) is not None
        )

    def owns_folder(self, folder: str) -> bool:
        """Whether a writer of this audit makes a folder of this name."""
        arrays = self.variables | self.others
        shard = re.fullmatch(f"shards/({NUMBER})", folder)
        if folder in arrays or folder in self.groups or (shard is not None and int(shard[1]) < self.cut.shards):
            return True
        name, _, rest = f"{folder}/".partition("/c/")
        missing = len(arrays[name].shape) - rest.count("/") if name in arrays else 0
        return missing > 0 and arrays[name].place(f"c/{rest}" + "/".join("0" * missing)) is not None


def layout_of(root: Json) -> Layout:
    """The layout that a root document describes.

    Raises:
        ValueError: if it describes anything that dpsub does not write.
    """
    about = root["attributes"]
    of_training, of_one_run = is_of_training(about), is_of_one_run(about)
    check = check_training if of_training else check_one_run if of_one_run else check_recorded
    check(about)
    check_files(about.get("files"))
    consolidated = root.get("consolidated_metadata")
    nodes = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    expected = {**GROUP, "attributes": about, "consolidated_metadata": {**EMPTY, "metadata": nodes}}
    if not isinstance(nodes, dict) or not same(root, expected):
        raise ValueError("it is not a group with consolidated metadata as dpsub writes it")
    groups = GROUPS_OF_TRAINING if of_training else GROUPS
    for name in groups:
        if not any(same(nodes.get(name), group) for group in (GROUP, {**GROUP, "consolidated_metadata": EMPTY})):
            raise ValueError(f"{name!r} is not a group as dpsub writes it")
    arrays = {name: _named(name, node) for name, node in nodes.items() if name not in groups}
    canaries, learned = {}, {}
    if of_training:
        cut = training_cut(about["runs"])
        variables, indexes = _variables(len(about["observed_steps"]), [], cut, arrays, BIT_EACH_RUN)
    elif of_one_run:
        cut = Cut(about["models"], 1, about["block_size"])
        variables, indexes = arrays_of_one_run(about, cut, arrays)
    else:
        cut = Cut(about["runs"], about["repeats"], about["block_size"])
        steps = -(-about["steps"] // about["observe_every"])
        bits = BIT_EACH_STEP if is_of_steps(about) else BIT_EACH_RUN
        variables, indexes = _variables(steps, about["metrics"].split(), cut, arrays, bits)
        canaries = {name: _canary(name, arrays[name], about) for name in CANARIES if name in arrays}
        learned = _learned(arrays, cut.repeats, steps) if "score" in about else {}
    layout = Layout(cut, variables, indexes | canaries | learned, groups)
    crafted = not of_training and not of_one_run and about["canary_crafted"] != EACH_STEP
    if ("canary/z" in canaries) != crafted or arrays.keys() != variables.keys() | layout.others.keys():
        raise ValueError("its arrays are not those of the audit that its attributes describe")
    for file in layout.documents.keys() - about["files"].keys():
        raise ValueError(f"files must list {file!r}")
    for file in about["files"]:
        if file not in layout.documents and layout.chunk_of(file, layout.others) is None:
            raise ValueError(f"files must list what an audit has once, got {file[:80]!r}")
    return layout


def _named(name: str, node: object) -> Array:
    try:
        return read_array(node)
    except ValueError as error:
        raise ValueError(f"{name[:80]!r} {error}") from None


def _variables(
    steps: int, metrics: list[str], cut: Cut, arrays: dict[str, Array], bits: tuple[str, ...]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The variables that the attributes name, and the indexes of their dimensions."""
    lead = {"repeat": cut.repeats} if cut.repeats > 1 else {}
    sizes = {"run": cut.runs, "step": steps}
    found, own = {}, {}
    if any(name in RESERVED or not name.isidentifier() for name in metrics) or len(set(metrics)) < len(metrics):
        raise ValueError("metrics must be names of observers")
    for name in ("score", "bit", *metrics):
        given = arrays.get(name)
        dims = given.dims[len(lead) :] if given is not None and given.dims is not None else ()
        if given is None or not (dims == bits if name == "bit" else _is_of(name, dims)):
            raise ValueError(f"{name!r} is not a variable as dpsub writes it")
        size = dict(zip(dims, given.shape[len(lead) :], strict=True))
        if "parameter" in dims:
            sizes.setdefault("parameter", size["parameter"])
        elif dims[0] != "run":
            sizes.setdefault(dims[0], size[dims[0]])
            own[dims[0]] = size[dims[0]]
        chunks = {**sizes, "run": min(cut.shard_runs, cut.runs), "repeat": 1}
        expected = given._replace(
            shape=tuple((lead | sizes)[dim] for dim in (*lead, *dims)),
            chunks=tuple(chunks[dim] for dim in (*lead, *dims)),
            dtype="int8" if name == "bit" else "float32",
            fill=-1 if name == "bit" else "NaN",
            level=VARIABLE,
            dims=(*lead, *dims),
            attributes={"long_name": given.attributes.get("long_name")},
        )
        if expected != given or not isinstance(given.attributes["long_name"], str):
            raise ValueError(f"{name!r} is not the variable that the attributes describe")
        found[name] = given
    if any(size > min(cut.runs, cut.block_size) for size in own.values()) or own.keys() & {"score", "bit", *metrics}:
        raise ValueError("the metrics' dimensions are not as dpsub writes them")
    indexes = {name: _index(name, size, arrays) for name, size in ({"step": sizes["step"]} | own | lead).items()}
    return found, indexes


def _is_of(name: str, dims: tuple[str, ...]) -> bool:
    """Whether a variable of this name may have these dimensions, beside that of repeats."""
    known: dict[str, Observer] = {"score": Score(), **BY_NAME}
    if name in known:
        return dims == known[name].dims
    return dims in OF_ALL_RUNS or are_of_some_runs(dims)


def _index(name: str, size: int, arrays: dict[str, Array]) -> Array:
    given = arrays.get(name)
    if given is None or given != Array((size,), given.chunks, "int64", 0, OTHER, (name,), {}):
        raise ValueError(f"{name!r} is not an index as dpsub writes it")
    return given


def _canary(name: str, given: Array, about: Json) -> Array:
    count = about["repeats"] if isinstance(about["slot"], list) else 1
    labels: Any = given.attributes.get("labels")
    ours = Array((count, *given.shape[1:]), given.chunks, "float32", 0.0, OTHER, None, {"labels": labels})
    whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < 2**53 for label in labels)
    if given != ours or len(given.shape) < 2 or not whole or len(labels) not in (0, count):
        raise ValueError(f"{name!r} is not a canary as dpsub writes it")
    return given


def _learned(arrays: dict[str, Array], repeats: int, steps: int) -> dict[str, Array]:
    """The arrays of a learned score: a coefficient and a direction for each repeat and step."""
    found = {}
    for name, dims in zip(LEARNED, (2, 3), strict=True):
        given = arrays.get(name)
        shape = () if given is None else (repeats, steps, *given.shape[2:])
        if given is None or len(shape) != dims or given != Array(shape, given.chunks, "float32", 0.0, OTHER, None, {}):
            raise ValueError(f"{name!r} is not of a learned score as dpsub writes it")
        found[name] = given
    return found
