"""The tasks that models are trained on.

Files are looked for in the folder that the environment variable DPSUB_DATA names, or else in the user's cache, and are
downloaded to there if they are missing. Put there by hand, they go by `mnist/*.gz`, `cifar-10-batches-bin/*.bin`,
`sst2/*.tsv` and `purchase100/dataset_purchase`.
"""

from dpsub.data.catalogue import cifar10, digits, mnist, purchase100, purchase100_like, sst2
from dpsub.data.embeddings import MINILM, VIT
from dpsub.data.features import features_or_digits, load_features
from dpsub.data.tasks import Task, check_task, from_arrays

__all__ = [
    "MINILM",
    "VIT",
    "Task",
    "check_task",
    "cifar10",
    "digits",
    "features_or_digits",
    "from_arrays",
    "load_features",
    "mnist",
    "purchase100",
    "purchase100_like",
    "sst2",
]
