"""What is public: the names in the faces of dpsub's rooms, and the methods that take arguments."""

import inspect
from importlib import import_module

FACES = {
    "dpsub": "dpsub",
    **{
        f"dpsub.{name}": f"dpsub.{name}"
        for name in (
            "accounting", "audits", "crafters", "data", "estimators", "figures", "models", "opacus", "trainers",
            "worst_case",
        )
    },
    "dpsub.distinguishers": "dpsub.audits.distinguishers",
    "dpsub.findings": "dpsub.figures.findings",
}  # fmt: skip

RESULT = "a record that dpsub makes and users only read"
PROTOCOL = "for others to implement, not to call"
PART = "a part of a training, made for each block by what checks all arguments before"
TENSORS = "of the protocol of models: trainers call it for each step, with tensors of their own"
EXCUSED = {
    "dpsub.Record": "what canaries hold, which check it",
    "dpsub.accounting.EpsilonInterval": RESULT,
    "dpsub.accounting.Risk": RESULT,
    "dpsub.audits.Status": RESULT,
    "dpsub.audits.OneRunDataset": "made by one_run_dataset, which is tried",
    "dpsub.audits.ProxyLabels": "made by proxy_labels, which is tried",
    "dpsub.estimators.Guesses": RESULT,
    "dpsub.estimators.LowerBound": RESULT,
    "dpsub.estimators.OverRepeats": RESULT,
    "dpsub.estimators.RiskBound": RESULT,
    "dpsub.models.Span": RESULT,
    "dpsub.opacus.Auditor": "made by audit_optimizer, which is tried",
    "dpsub.opacus.PrivacyStatement": RESULT,
    "dpsub.opacus.Report": RESULT,
    "dpsub.audits.Observer": PROTOCOL,
    "dpsub.distinguishers.Direction": "what distinguishers learn, made by their `learn`, which is tried",
    "dpsub.distinguishers.Distinguisher": PROTOCOL,
    "dpsub.distinguishers.Scorer": PROTOCOL,
    "dpsub.audits.Watch": PROTOCOL,
    "dpsub.models.Model": PROTOCOL,
    "dpsub.models.Stochastic": PROTOCOL,
    "dpsub.models.ModuleBank": PART,
    "dpsub.models.losses_of": "for crafters, which are tried",
    "dpsub.trainers.label_logits": TENSORS,
    "dpsub.trainers.StepCanary": PROTOCOL,
    "dpsub.trainers.StepGradients": RESULT,
    **{f"dpsub.trainers.{name}": PART for name in ("Bank", "GradientSlot", "RecordSlot", "Slot", "assemble")},
    **{f"dpsub.trainers.{name}": PART for name in ("ScoredSteps",)},
    **{f"dpsub.trainers.{name}": PART for name in ("block_size", "poisson_coins")},
    "dpsub.models.Network": "made of layers that are not public: mlp and convnet make it",
    **{
        f"dpsub.models.Linear.{name}": TENSORS
        for name in ("clipped_sum", "first", "flat", "gradient_norms", "inputs", "within_span")
    },
    **{
        f"dpsub.models.{kind}.{name}": TENSORS
        for kind in ("Linear", "Network")
        for name in ("initial_parameters", "logits", "prepared", "working_floats")
    },
    "dpsub.opacus.SubstitutePRVAccountant.get_optimizer_hook_fn": "Opacus's own, for its optimizers",
}  # fmt: skip
# Of these rooms, NumPy and matplotlib refuse what is not checked: their own tests say what is.
UNTRIED = ("dpsub.data.", "dpsub.figures.", "dpsub.findings.")


def public():
    """The names of all public callables, as users write them: those of classes' methods after the classes'."""
    for face, module in FACES.items():
        room = import_module(module)
        own = [name for name, value in vars(room).items() if getattr(value, "__module__", "") == module]
        for name in getattr(room, "__all__", own):
            value = getattr(room, name)
            if name.startswith("_") or inspect.ismodule(value) or not callable(value) or inspect.isbuiltin(value):
                continue
            if not inspect.isclass(value):
                if inspect.isfunction(value):
                    yield f"{face}.{name}"
                continue
            yield f"{face}.{name}"
            if EXCUSED.get(f"{face}.{name}") not in (PROTOCOL, PART):
                yield from (f"{face}.{name}.{method}" for method in methods(value))


def methods(kind):
    """The public methods of a class that it defines itself, and that take arguments."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(value) and len(inspect.signature(value).parameters) > 1:
            yield name


def found(name):
    """The callable of this name."""
    face = max((face for face in FACES if name.startswith(f"{face}.")), key=len)
    value = import_module(FACES[face])
    for part in name.removeprefix(f"{face}.").split("."):
        value = getattr(value, part)
    return value


def parameters(name):
    """The names of a callable's parameters, without those that take any name."""
    value = found(name)
    if not callable(value):
        return set()
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    taken = inspect.signature(value).parameters.values()
    return {one.name for one in taken if one.kind not in several} - {"self"}
