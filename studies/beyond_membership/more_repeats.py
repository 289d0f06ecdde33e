"""Further repeats of kept audits: the same canary, other worlds and noise.

python -m studies.beyond_membership.more_repeats FOLDER REPEATS PARAMETERS [SECTION] reads the audits of a folder, and
adds what they lack to REPEATS repeats. Repeat i, counted from 0, is kept in FOLDER/repeat=i. PARAMETERS is a preset's
file, such as notebooks/params/paper.yaml: its SECTION, by default that of the folder's name, names the features.
"""

import sys
from pathlib import Path

import xarray as xr
import yaml

import dpsub
from dpsub import audits, crafters, estimators, findings
from studies.beyond_membership import tasks
from studies.trainings import ON_A_CPU

RECORDS = ("name", "stand_in_for", "n_train", "n_aux")


def records(parameters, section):
    """The records that a preset's file names in a section, or for the audits of a folder of this name."""
    given = yaml.safe_load(Path(parameters).read_text())[Path(section).absolute().name]
    return tasks.features_or_digits(given["features"], **{name: given.get(name) for name in RECORDS}, seed=0)


def spec_of(one):
    """The training of a kept audit."""
    return dpsub.DPSGD(
        one.noise_multiplier, one.max_grad_norm, one.sample_rate, one.steps, one.learning_rate, one.optimizer
    )


def repeated(one, task, seed, store, *, repeats=1):
    """The audit again, on these records and with this seed."""
    model = dpsub.models.linear(task)
    pair = crafters.BY_SCENARIO[one.scenario](task, model, spec_of(one), seed=one.canary_seed)
    how = {"runs": one.runs, "repeats": repeats, "observe_every": one.observe_every, "seed": seed}
    again = dpsub.audit(task, model, pair, spec_of(one), store=store, **how, **ON_A_CPU)
    print(store, f"{again.wall_seconds:.0f} s", flush=True)


def with_repeats(folder, label="q = {sample_rate:g}"):
    """The audits of a folder, each with what is there of its repeats."""
    folders = [Path(folder), *sorted(Path(folder).glob("repeat=*"))]
    found = [audits.load_all(one, label=label) for one in folders]
    return {
        key: xr.concat(
            [
                kept[key].drop_vars("repeat") if "repeat" in kept[key].dims else kept[key].expand_dims("repeat")
                for kept in found
                if key in kept
            ],
            "repeat",
            coords="different",
            compat="equals",
            combine_attrs="override",
        )
        for key in found[0]
    }


def bounds(one, *, delta, step=-1):
    """The valid bounds at one step, of each repeat of an audit."""
    return [bound.epsilon for (bound,) in findings.bounds(one.isel(step=[step]), delta=delta)]


def by_runs(one, runs, *, delta):
    """The bounds from the first R runs of each repeat, for each R, and the bound of all its runs as one audit."""
    last = one.isel(step=[-1])
    each = [findings.bounds(last, delta=delta, runs=r) for r in runs]
    together = one.isel(step=-1).stack(all_runs=("repeat", "run"))
    pooled = estimators.epsilon_lower_bound(together.score, together.bit, delta=delta)
    return [[bounds[repeat][0] for bounds in each] for repeat in range(one.sizes["repeat"])], pooled


def main(folder, repeats, parameters, section=None):
    task = records(parameters, section or folder)
    for i in range(1, int(repeats)):
        for path in sorted(Path(folder).glob("*.db")):
            one = audits.load(path)
            if i < one.sizes.get("repeat", 1):
                continue
            if one.task_fingerprint != task.fingerprint:
                raise ValueError(f"PARAMETERS must name the records of {path}, got {parameters}")
            store = path.parent / f"repeat={i}" / path.name
            repeated(one, task, audits.repeat_seeds(one.attrs["seed"], int(repeats))[i], store)


if __name__ == "__main__":
    main(*sys.argv[1:])
