"""Natural samples with shorter features, at two clipping bounds.

A record whose gradient is shorter than the clipping bound C is not clipped and drowns in the noise, which grows with C.
How long a gradient is depends on the norm of the features, which *Beyond Membership* does not state.

python -m studies.beyond_membership.shorter_features FOLDER PARAMETERS audits the natural samples of a folder of
clipping bounds again, with features scaled to a part of their norm and three repeats, and keeps the audits in
FOLDER/norm=0.5 and FOLDER/norm=0.25. PARAMETERS is a preset's file, as for studies.beyond_membership.more_repeats. What
is there is not made again.
"""

import sys
from itertools import product
from pathlib import Path

from dpsub import audits
from studies.beyond_membership import more_repeats, varied
from studies.beyond_membership.tasks import scaled

PARTS, BOUNDS, REPEATS = (0.25, 0.5), (8, 1), 3


def kept_parts(*, delta):
    """The kept bounds by part and clipping bound, and by part the norms of the target's and the sample's gradient."""
    bounds, norms = {}, {}
    for part, bound in product(PARTS, BOUNDS):
        one = audits.load(varied.PAPER / f"figA2_clipping/norm={part:g}/C={bound}-S5.db")
        bounds[part, bound] = more_repeats.bounds(one, delta=delta)
        norms[part] = one.canary_norm, one.canary_norm * one.canary_norm_ratio
    return bounds, norms


def main(folder, parameters):
    folder = Path(folder)
    task = more_repeats.records(parameters, folder)
    for part, bound in product(PARTS, BOUNDS):
        one = audits.load(folder / f"C={bound}-S5.db")
        store = folder / f"norm={part:g}" / f"C={bound}-S5.db"
        shorter = scaled(task, part, f"{task.name}, norm times {part:g}")
        more_repeats.repeated(one, shorter, one.attrs["seed"], store, repeats=REPEATS)


if __name__ == "__main__":
    main(*sys.argv[1:])
