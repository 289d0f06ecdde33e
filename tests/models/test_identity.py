"""What a bank of a module is known by: all that its scores depend on, or a sentence that says what it cannot tell."""

import copy
import importlib
import linecache
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial, wraps
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from dpsub import data, models
from dpsub.models import wrapping

ROOT = Path(__file__).parents[2]
SCALE = 1.0
settings = ModuleType("settings")  # as a file of one's own is
settings.rate = 1.0


@dataclass
class Config:
    rate: float
    inner: dict


class Kind(Enum):
    ONE = 1
    TWO = 2


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Net(nn.Module):
    """A linear head with whatever attributes it is given."""

    factor = 1.0

    def __init__(self, **own):
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(64, 10)
        for name, value in own.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.out(x.flatten(1)) * scale_of(self)

    def scaled(self, x):
        return [settings.rate * self(one) for one in x]


class Other(Net):
    pass


def scale_of(net):
    return SCALE * net.factor


class Scaled(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, weight):
        return weight * self.rate


def squares(outputs, labels):
    return (outputs - nn.functional.one_hot(labels, 10)).square().sum(dim=1)


def scaled_squares(outputs, labels, scale=1.0):
    return SCALE * scale * squares(outputs, labels)


def halved(module, args, output):
    return output / 2


def doubled(module, args, output):
    return output * 2


def by(scale):
    def decorated(function):
        @wraps(function)
        def inner(outputs, labels):
            return scale * function(outputs, labels)

        return inner

    return decorated


@wraps(nn.functional.cross_entropy)
def halves_by_another_name(outputs, labels):
    return squares(outputs, labels) / 2


@wraps(nn.functional.cross_entropy)
def squares_by_another_name(outputs, labels):
    return squares(outputs, labels)


@by(2.0)
def decorated_squares(outputs, labels):
    return squares(outputs, labels)


def closed(scale):
    def loss(outputs, labels):
        return scale * squares(outputs, labels)

    return loss


@cache
def remembered(rate):
    return SCALE * rate


class Pair(NamedTuple):
    one: int
    other: int = 2


def halving():
    class Local(Net):
        def forward(self, x):
            return super().forward(x) / 2

    return Local()


def doubling():
    class Local(Net):
        def forward(self, x):
            return super().forward(x) * 2

    return Local()


def weighted(*weights):
    return nn.CrossEntropyLoss(weight=torch.tensor([*weights, *[1.0] * (10 - len(weights))]), reduction="none")


def parametrized(rate):
    module = Net()
    parametrize.register_parametrization(module.out, "weight", Scaled(rate))
    return module


def hooked(hook):
    module = Net()
    module.out.register_forward_hook(hook)
    return module


def buffered(value):
    module = Net()
    module.register_buffer("own", torch.tensor(value), persistent=False)
    return module


def frozen(*names):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10))
    for name in names:
        module.get_submodule(name).requires_grad_(False)
    return module


def shaped(*shape):
    module = Net()
    module.own = nn.Parameter(torch.ones(shape))
    return module


def tied(*places):
    module = frozen()
    for place in places:
        module[3 - place].weight = module[2].weight
    return module


def pooled(**options):
    return nn.Sequential(nn.AvgPool1d(3, padding=1, stride=1, **options), nn.Flatten(), frozen()[1])


def started(start):
    return partial(models.from_module, start=start)


def ours(**own):
    return lambda: Net(**own)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Banks are made without comparing their modules with loops, on which nothing depends that they are known by."""
    monkeypatch.setattr(wrapping, "_check_records_apart", lambda bank, x, y: None)


@pytest.fixture(scope="module")
def task(module_of):
    return module_of("attention")[0]


def bank(task, made, loss=None, **options):
    """A bank of what `made` makes."""
    return models.from_module(made(), task, loss=loss, **options)


DIFFERENT = {
    "weights of the loss": [{"loss": weighted(1.0)}, {"loss": weighted(2.0)}],
    "arguments of a partial": [
        {"loss": partial(nn.functional.cross_entropy, reduction="none", label_smoothing=rate)} for rate in (0.0, 0.1)
    ],
    "function of a partial": [{"loss": partial(one)} for one in (squares, scaled_squares)],
    "functions that pass for a library's": [{"loss": one} for one in (halves_by_another_name, squares_by_another_name)],
    "lambda in a function of a library's": [{"made": ours(way=torch.vmap(partial(Net, rate=r)))} for r in (1, 2)],
    "decorated": [{"loss": decorated_squares}, {"loss": squares}],
    "classes in functions": [{"made": make} for make in (halving, doubling)],
    "named tuple": [{"made": ours(own=Pair(value))} for value in (1, 2)],
    "closures": [{"loss": closed(scale)} for scale in (1.0, 2.0)],
    "method of a module": [{"loss": weighted(w).forward} for w in (1.0, 2.0)],
    "number, truth or text": [{"made": ours(rate=rate)} for rate in (1, 2, 1.0, True, "1")],
    "tuple": [{"made": ours(sizes=sizes)} for sizes in ((1, 2), (1, 3), [1, 2])],
    "dictionary": [{"made": ours(about={"a": {"b": value}})} for value in (1, 2)],
    "set": [{"made": ours(about=about)} for about in ({1, "b", (3,)}, {1, 3}, frozenset({1, 3}))],
    "dataclass": [{"made": ours(config=Config(1.0, {"a": value}))} for value in (1, 2)],
    "slots": [{"made": ours(config=Slotted(value))} for value in (1, 2)],
    "enum": [{"made": ours(kind=kind)} for kind in Kind],
    "middle of a long array": [{"made": ours(own=np.arange(5000) == value)} for value in (2000, 2001)],
    "plain tensor": [{"made": ours(own=torch.full((2,), value))} for value in (1.0, 2.0)],
    "shape of a plain tensor": [{"made": ours(own=torch.ones(shape))} for shape in ((2, 3), (3, 2))],
    "list of modules": [{"made": ours(own=[frozen()[1].requires_grad_(flag)])} for flag in (False, True)],
    "buffer that is not stored": [{"made": partial(buffered, value)} for value in (1.0, 2.0)],
    "what is frozen": [{"made": partial(frozen, name)} for name in ("2", "3")],
    "what is frozen, fresh": [{"made": partial(frozen, name), "start": "fresh"} for name in ("2", "3")],
    "shape of a parameter": [{"made": partial(shaped, *shape)} for shape in ((2, 3), (3, 2))],
    "what is tied": [{"made": partial(tied, place), "start": "fresh"} for place in (0, 1)],
    "what torch does not show": [{"made": partial(pooled, count_include_pad=flag)} for flag in (True, False)],
    "parametrization": [{"made": partial(parametrized, rate)} for rate in (1.0, 2.0)],
    "hook": [{"made": partial(hooked, hook)} for hook in (halved, doubled)],
    "class": [{"made": Net}, {"made": Other}],
    "start": [{"made": Net, "start": make} for make in (Net, Other, partial(Net, rate=1), partial(Net, rate=2))],
}


FIRST = [options[0] for options in DIFFERENT.values()]


@pytest.mark.parametrize("options", DIFFERENT.values(), ids=DIFFERENT)
def test_banks_that_differ_have_reprs_that_differ_and_equal_banks_have_one(task, options):
    told = [repr(bank(task, **{"made": Net, "name": "net", **one})) for one in options]
    assert len(set(told)) == len(options), told
    again = bank(task, **copy.deepcopy({"made": Net, "name": "net", **options[0]}))
    assert repr(again) == repr(again.prepared(torch.device("cpu"), 0.1)) == told[0]
    assert bank(task, **{"made": Net, **options[0]}).untold == ()


def test_what_a_module_reads_elsewhere_is_part_of_it(task, monkeypatch):
    def told():
        return repr(bank(task, Net)), repr(bank(task, frozen, loss=scaled_squares))

    before = told()
    assert told() == before
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert not {*before} & {*told()}, "a global, which the loss reads, and a function that the module calls"
    monkeypatch.undo()
    monkeypatch.setattr(Net, "factor", 2.0)
    assert told() == (told()[0], before[1])
    assert told()[0] != before[0], "an attribute of the class"
    monkeypatch.undo()
    monkeypatch.setattr(settings, "rate", 2.0)
    assert told()[0] != before[0], "a global of another file"


def test_a_global_that_a_remembered_function_reads_is_part_of_it(task, monkeypatch):
    before = repr(bank(task, ours(way=remembered)))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert repr(bank(task, ours(way=remembered))) != before


OWN = """
import torch
from dataclasses import dataclass
from torch import nn

@dataclass
class Config:
    rate: float = 1.0

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.out, self.config = nn.Linear(64, 10), Config()

class Net(Base):
    @torch.no_grad()
    def unused(self):
        return 1

    def forward(self, x):
        return scaled(self.out(x.flatten(1)) * self.config.rate)

def scaled(x):
    return 1.0 * x

def loss(outputs, labels):
    return scaled(nn.functional.cross_entropy(outputs, labels, reduction="none"))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Imports a file of one's own with this text, as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported(text):
        (tmp_path / "files_of_ones_own.py").write_text(text)
        linecache.clearcache()
        sys.modules.pop("files_of_ones_own", None)
        return importlib.import_module("files_of_ones_own")

    yield imported
    sys.modules.pop("files_of_ones_own", None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("self.out(x.flatten(1)) *", "3 * self.out(x.flatten(1)) *", id="forward"),
        pytest.param("1.0 * x", "2.0 * x", id="function that it calls"),
        pytest.param("torch.manual_seed(0)", "torch.manual_seed(0 + 0)", id="class that it derives from"),
        pytest.param("return 1\n", "return 2\n", id="decorated method"),
        pytest.param("rate: float = 1.0", "rate: float = 1.0\n    more = 2", id="class of an attribute"),
        pytest.param('reduction="none"', 'label_smoothing=0.1, reduction="none"', id="loss"),
    ],
)
def test_code_is_part_of_a_bank(task, own, old, new):
    def told(text):
        there = own(text)
        made = bank(task, there.Net, loss=there.loss)
        assert made.untold == ()
        return repr(made)

    first = told(OWN)
    assert told(OWN.replace(old, new)) != first
    assert told(OWN) == first


def test_a_file_that_is_edited_after_it_was_read_is_still_the_code_that_runs(task, own):
    there = own(OWN)
    before = repr(bank(task, there.Net))
    Path(there.__file__).write_text(OWN.replace("1.0 * x", "2.0 * x"))
    assert repr(bank(task, there.Net)) == before


@pytest.mark.slow
def test_reprs_are_the_same_in_another_process(task):
    code = (
        "import sys; sys.path[:0] = ['tests/models']; import numpy as np; import test_identity as t;"
        "from dpsub import data;"
        "task = data.from_arrays(np.zeros((4, 8, 8)), [0, 1, 2, 9]);"
        "print(*(repr(t.bank(task, **{'made': t.Net, **one})) for one in t.FIRST), sep='\\n')"
    )
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert there.splitlines() == [repr(bank(task, **{"made": Net, **one})) for one in FIRST]


def test_a_module_of_torchs_layers_keeps_the_repr_that_stores_hold():
    rng = np.random.default_rng(0)
    task = data.from_arrays(rng.random((4, 1, 28, 28)), [0, 1, 2, 9])
    head = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    stored = "Sequential(1×28×28 to 10, 7850 parameters, fresh start, code and values 9cfc323f)"
    assert repr(models.from_module(head, task, start="fresh")) == stored


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return self


def without_source():
    names = {}
    exec("class Typed(Net):\n    def forward(self, x):\n        return super().forward(x) / 2", globals(), names)
    return names["Typed"]()


UNTOLD = {
    "lambda as a loss": ({"loss": lambda outputs, labels: squares(outputs, labels)}, ("loss",)),
    "lambda in a partial": ({"loss": partial(lambda k, o, y: k * squares(o, y), 2.0)}, ("loss",)),
    "lambda as an attribute": ({"made": ours(way=lambda x: x)}, ("module.way",)),
    "lambda in a dictionary": ({"made": ours(ways={"up": [lambda x: x]})}, ("module.ways['up'][0]",)),
    "object that cannot be copied": ({"made": ours(own=Locked())}, ("module.own.lock",)),
    "class without a source": ({"made": without_source}, ("module.forward",)),
    "closure as a hook": (
        {"made": lambda: hooked(lambda module, args, output: output)},
        ("module.out._forward_hooks[0]",),
    ),
    "lambda as a start": ({"start": lambda: Net()}, ("start",)),
}


@pytest.mark.parametrize(("options", "untold"), UNTOLD.values(), ids=UNTOLD)
def test_what_cannot_be_told_is_said_unless_the_user_names_the_bank(task, options, untold):
    options = {"made": Net, **options}
    assert bank(task, **options).untold == untold
    assert bank(task, **options, name="mine").untold == ()


def test_what_a_closure_holds_is_told_even_if_its_code_cannot_be(task):
    assert repr(bank(task, Net, loss=closed(1.0), name="n")) != repr(bank(task, Net, loss=closed(2.0), name="n"))


def test_modules_of_opacus_and_torch_are_told(banks_of_modules):
    for name, (_, made) in banks_of_modules.items():
        assert made.untold == (), name
