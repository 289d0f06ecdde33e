"""No store answers for another audit: not for a model, nor for an observer, that differs from the stored one."""

import re
from dataclasses import dataclass, field
from functools import partial
from textwrap import dedent

import numpy as np
import pytest
import torch
from torch import nn

from dpsub import DPSGD, CanaryPair, Pairs, audit, audit_one_run, audit_steps, audits, data, models

SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=2, learning_rate=0.1)


class Head(nn.Module):
    def __init__(self, **own):
        super().__init__()
        self.out = nn.Linear(6, 3)
        for one in self.parameters():
            nn.init.zeros_(one)
        for name, value in own.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.out(x) * getattr(self, "rate", 1.0)


class Share(audits.Observer):
    name = "share"
    long_name = "share of the score"

    def __init__(self, of):
        self.of = of

    def watch(self, bank, task, runs):
        return audits.Watch(lambda: self.of * bank.scores())


class TwiceShare(Share):
    def watch(self, bank, task, runs):
        return audits.Watch(lambda: 2 * self.of * bank.scores())


class Answered(Share):
    name = "answered"

    def attributes(self, task):
        return {"of": "what I say"}


@dataclass(eq=False)
class Wrapped:
    """A model of one's own, which passes everything on to another."""

    inner: models.Model
    rates: object = field(default=1.0)

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)


class Silent(models.Linear):
    __repr__ = object.__repr__


def weighted(last):
    return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, last]), reduction="none")


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.random((12, 6)), rng.integers(0, 3, 12), num_classes=3)


def audited(small, store, bank, kind="audit", **options):
    if kind == "one run":
        rng = np.random.default_rng(1)
        pairs = Pairs([0, 3, 4], rng.random((3, 6)), rng.random((3, 6)), [0, 1, 2], [1, 2, 0])
        return audit_one_run(small, bank, pairs, SPEC, store=store, device="cpu", progress=False)
    canary = CanaryPair((small.x_train[2], 0), (small.x_train[2], 2), 2, "S4")
    if kind == "steps":
        return audit_steps(small, bank, canary, SPEC, store=store, device="cpu", progress=False)
    return audit(small, bank, canary, SPEC, runs=8, store=store, device="cpu", progress=False, **options)


@pytest.mark.parametrize("kind", ["audit", "steps", "one run"])
@pytest.mark.parametrize(
    ("module", "loss"),
    [
        pytest.param([Head(), Head()], [weighted(1.0), weighted(5.0)], id="weights of the loss"),
        pytest.param([Head(rate=1.0), Head(rate=3.0)], [None, None], id="attribute of the module"),
        pytest.param(
            [Head(), Head()],
            [partial(nn.functional.cross_entropy, reduction="none", label_smoothing=s) for s in (0.0, 0.9)],
            id="arguments of a function",
        ),
    ],
)
def test_a_store_does_not_answer_for_another_model(small, tmp_path, kind, module, loss):
    one, other = (
        models.from_module(*given, loss=of) for given, of in zip(((m, small) for m in module), loss, strict=True)
    )
    store = tmp_path / "audit.db"
    made = audited(small, store, one, kind)
    assert audited(small, store, one, kind).identical(made)
    assert not audited(small, None, other, kind).score.equals(made.score)
    with pytest.raises(ValueError, match="store holds another audit, .*\n  model: stored"):
        audited(small, store, other, kind)


@pytest.mark.parametrize(
    ("module", "loss", "told"),
    [
        (Head(), lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"), "got loss, which"),
        (Head(rate=1.0, way=lambda x: x), None, "got module.way, which"),
    ],
)
def test_what_a_store_cannot_tell_apart_needs_a_name_and_only_for_a_store(small, tmp_path, module, loss, told):
    bank = models.from_module(module, small, loss=loss)
    assert np.isfinite(audited(small, None, bank).score).all()
    with pytest.raises(ValueError, match=f"store must tell this audit from others, {told} .* name the model"):
        audited(small, tmp_path / "audit.db", bank)
    assert not (tmp_path / "audit.db").exists()
    named = models.from_module(module, small, loss=loss, name="mine")
    made = audited(small, tmp_path / "audit.db", named)
    assert audited(small, tmp_path / "audit.db", named).identical(made)


@pytest.mark.parametrize(
    "model", [Silent(6, 3), Wrapped(Silent(6, 3)), Wrapped(models.Linear(6, 3), np.zeros(5000))], ids=type
)
def test_models_of_ones_own_need_a_repr_that_tells_them_apart_and_only_for_a_store(small, tmp_path, model):
    audited(small, None, model)
    with pytest.raises(ValueError, match="got a model whose repr does not tell it .*: define a __repr__"):
        audited(small, tmp_path / "audit.db", model)


def test_a_store_does_not_answer_for_another_observer(small, tmp_path):
    bank, store = models.linear(small), tmp_path / "audit.db"
    made = audited(small, store, bank, metrics=[Share(1.0)])
    assert audited(small, store, bank, metrics=[Share(1.0)]).identical(made)
    with pytest.raises(ValueError, match="observer_share: stored"):
        audited(small, store, bank, metrics=[Share(2.0)])
    held = [Share(lambda scores: scores)]
    with pytest.raises(ValueError, match=r"got share\['of'\], which dpsub cannot tell apart: .* define `attributes`"):
        audited(small, tmp_path / "other.db", bank, metrics=held)
    with pytest.raises(ValueError, match="observer_share: stored"):
        audited(small, store, bank, metrics=[TwiceShare(1.0)])
    said = audited(small, tmp_path / "said.db", bank, metrics=[Answered(1.0)])
    assert said.attrs["of"] == "what I say"
    assert "observer_answered" not in said.attrs


CELLS = (
    """
    import numpy as np, torch
    from dataclasses import dataclass
    from torch import nn
    from dpsub import DPSGD, CanaryPair, audit, data, models

    task = data.from_arrays(np.random.default_rng(0).random((12, 6)), np.arange(12) % 3)
    spec = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=2, learning_rate=0.1)
    canary = CanaryPair((task.x_train[2], 0), (task.x_train[2], 2), 2, "S4")

    @dataclass
    class Config:
        rate: float = 1.0

    def audited(module):
        torch.manual_seed(0)
        bank = models.from_module(module(), task)
        found = audit(task, bank, canary, spec, runs=8, store=STORE, device="cpu", progress=False)
        print(found.score.values.ravel().tolist())
    """,
    """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.config = nn.Linear(6, 3), Config()

        def forward(self, x):
            return self.config.rate * self.out(x)

    audited(Net)
    """,
)


@pytest.mark.slow  # a kernel imports dpsub
def test_a_class_of_a_notebook_whose_forward_changed_is_refused(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    setting, first = map(dedent, CELLS)
    changed = first.replace("return ", "return 3 * ")

    def printed(*cells):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
        nbclient.NotebookClient(notebook, allow_errors=True).execute()
        return ["".join(out.get("text", out.get("evalue", "")) for out in cell.outputs) for cell in notebook.cells]

    setting = f"STORE = {str(tmp_path / 'audit.db')!r}\n{setting}"
    _, made, again, refused, restored = printed(setting, first, "audited(Net)", changed, first)
    assert made.startswith("[")
    assert again == restored == made
    assert re.search(r"another audit, .*\n  model: .*code and values .*\ngive another path, or .* its code", refused)
    assert printed(setting, first)[1] == made, "another kernel goes on"
    assert refused.split(", asked for")[1] == printed(setting, changed)[1].split(", asked for")[1]
