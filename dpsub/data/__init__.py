"""The tasks that models are trained on.

The environment variable DPSUB_DATA names the data folder. By default it is the user's cache. Missing files are
downloaded to it. Files placed by hand must be named `mnist/*.gz`, `cifar-10-batches-bin/*.bin`, `sst2/*.tsv` and
`purchase100/dataset_purchase`.
"""

from dpsub.data.catalogue import (
    breast_cancer,
    cifar10,
    digits,
    load_features,
    mnist,
    purchase100,
    purchase100_like,
    random_images,
    sst2,
)
from dpsub.data.embeddings import VIT
from dpsub.data.frames import from_frame
from dpsub.data.tasks import Task, from_arrays

__all__ = [
    "VIT",
    "Task",
    "breast_cancer",
    "cifar10",
    "digits",
    "from_arrays",
    "from_frame",
    "load_features",
    "mnist",
    "purchase100",
    "purchase100_like",
    "random_images",
    "sst2",
]
