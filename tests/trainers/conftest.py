import numpy as np
import pytest
import torch

from dpsub import DPSGD
from dpsub.trainers import assemble

SETTING = {"noise_multiplier": 0.7, "max_grad_norm": 1.0, "sample_rate": 0.3, "steps": 8, "learning_rate": 0.1}


@pytest.fixture(scope="session")
def spec():
    """Makes a DPSGD; what is given takes the place of the usual."""
    return lambda **changes: DPSGD(**SETTING | changes)


@pytest.fixture(scope="session")
def bank_of(cast):
    """Makes a bank of one of the cast, with these bits."""

    def make(name, setting, bits, pair=None, seed=0, **options):
        task, model = cast[name]
        generator = torch.Generator().manual_seed(seed)
        return assemble(model, task, setting, bits=np.array(bits, np.int8), generator=generator, canary=pair, **options)

    return make
