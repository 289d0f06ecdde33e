"""One public callable: arguments to try, and the judge of what comes back."""

import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from hypothesis import strategies as st

from fuzz.hostile import ANYTHING, among

SECONDS = 20  # of computing; other processes on the machine do not count
OMIT = object()


@dataclass(frozen=True)
class Call:
    """A public callable.

    Attributes:
        name: as users write it; what follows a space tells variants apart.
        function: the callable, or a function that calls a method with the arguments.
        good: for each argument, a list or a strategy of what it takes. `OMIT` leaves it out.
        fine: takes what was returned, and the arguments by name. It asserts what the docstring promises.
        hostile: strategies for arguments that must not be just anything.
    """

    name: str
    function: Callable
    good: dict
    fine: Callable
    hostile: dict = field(default_factory=dict)

    def arguments(self):
        """Strategy: good arguments, most of the time with one or two that are spoiled."""
        good = {name: among(one) if isinstance(one, list) else one for name, one in self.good.items()}

        @st.composite
        def drawn(draw):
            count = min(draw(st.sampled_from([0, 0, 1, 1, 1, 2])), len(good))
            names = st.lists(st.sampled_from(sorted(good)), min_size=count, max_size=count, unique=True)
            spoiled = draw(names) if count else []
            values = {
                name: draw(self.hostile.get(name, ANYTHING) if name in spoiled else good[name]) for name in sorted(good)
            }
            return {name: value for name, value in values.items() if value is not OMIT}

        return drawn()

    def judge(self, arguments):
        """Call it, and say whether it was answered. Any error refuses; a wrong result and a hang are raised again."""
        before, answered = state(), False
        try:
            with limited():
                result = self.function(**arguments)
            answered, after = True, state()
        except TooLong:
            raise
        except Exception:  # whoever refuses it: dpsub, NumPy, torch, SQLite or Python
            after = state()
        else:
            self.fine(result, **arguments)
        finally:
            plt.close("all")
        assert after == before, "the call changed what belongs to the process"
        return answered


def state():
    """What belongs to the process, and no call may change."""
    return (
        np.geterr(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.random.get_rng_state().sum().item(),
        torch.backends.mkldnn.matmul.fp32_precision,
        dict(mpl.rcParams),
    )


class TooLong(AssertionError):
    """The call computed for more than `SECONDS`."""


@contextmanager
def limited():
    def stop(*_):
        raise TooLong(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    began = time.process_time()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if time.process_time() - began > SECONDS:
        raise TooLong(f"{time.process_time() - began:.0f} s")
