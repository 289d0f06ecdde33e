"""Further repeats of kept audits: the same canary, other worlds and noise.

python -m own_code.more_repeats FOLDER REPEATS PARAMETERS, in notebooks/,
reads the audits of a folder. It keeps the second repeat in FOLDER/repeat=1,
and so on. PARAMETERS is a preset's file, such as params/paper.yaml: its
section of the folder's name names the features.
"""

import sys
from pathlib import Path

import xarray as xr
import yaml

import dpsub
from dpsub import audits, crafters, findings

RECORDS = ("name", "stand_in_for", "n_train", "n_aux")


def repeated(one, task, seed, store):
    """The audit again, with another seed and a canary of its own seed."""
    model = dpsub.models.linear(task)
    spec = dpsub.DPSGD(
        one.noise_multiplier,
        one.max_grad_norm,
        one.sample_rate,
        one.steps,
        one.learning_rate,
        one.optimizer,
    )
    craft = crafters.BY_SCENARIO[one.scenario]
    pair = craft(task, model, spec, seed=one.canary_seed)
    return dpsub.audit(
        task,
        model,
        pair,
        spec,
        runs=one.runs,
        observe_every=one.observe_every,
        seed=seed,
        store=store,
        device="cpu",
        progress=False,
    )


def with_repeats(folder, label):
    """The audits of a folder, each with its further repeats."""
    found = audits.load_all(folder, label=label)
    further = [
        audits.load_all(more, label=label)
        for more in sorted(Path(folder).glob("repeat=*"))
    ]
    return {
        key: xr.concat(
            [one, *(more[key] for more in further)],
            "repeat",
            combine_attrs="override",
        )
        for key, one in found.items()
    }


def bounds(one, *, delta, step=-1):
    """The valid bounds at one step, of each repeat of an audit."""
    at_step = findings.bounds(one.isel(step=[step]), delta=delta)
    return [bound.epsilon for (bound,) in at_step]


def main(folder, repeats, parameters):
    preset = yaml.safe_load(Path(parameters).read_text())
    given = preset[Path(folder).name]
    task = dpsub.data.features_or_digits(
        given["features"],
        **{name: given.get(name) for name in RECORDS},
        seed=0,
    )
    for i in range(1, int(repeats)):
        for path in sorted(Path(folder).glob("*.db")):
            one = audits.load(path)
            if one.task_fingerprint != task.fingerprint:
                raise ValueError(
                    f"PARAMETERS must name the records of {path}, "
                    f"got {parameters}"
                )
            store = path.parent / f"repeat={i}" / path.name
            seed = audits.repeat_seeds(one.seed, int(repeats))[i]
            again = repeated(one, task, seed, store)
            print(store, f"{again.wall_seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
