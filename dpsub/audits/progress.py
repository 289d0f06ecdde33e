"""Progress bars of an audit."""

from __future__ import annotations

from threading import Lock

from tqdm.auto import tqdm

from dpsub.audits.any_plans import AnyPlan
from dpsub.audits.one_run_plans import OneRunPlan
from dpsub.audits.plans import Shard
from dpsub.audits.step_plans import StepPlan


class Bars:
    """A bar of models, or of steps where trainings are few, and a second bar of repeats if there are several."""

    def __init__(self, plan: AnyPlan, missing: list[Shard], progress: bool) -> None:
        self._failed = 0
        self._each, unit = 1, " models"
        if isinstance(plan, StepPlan | OneRunPlan):
            self._each, unit = plan.spec.steps, " steps"
        self._ticked: dict[int, int] = {}
        self._lock = Lock()
        self._left = [sum(shard.repeat == repeat for shard in missing) for repeat in range(plan.repeats)]
        done, total = self._left.count(0), plan.runs * plan.repeats
        self._repeats = tqdm(
            total=plan.repeats, initial=done, unit=" repeats", desc="repeats", disable=not progress or plan.repeats == 1
        )
        self.models = tqdm(
            total=total * self._each,
            initial=(total - sum(shard.stop - shard.start for shard in missing)) * self._each,
            unit=unit,
            desc=plan.title,
            disable=not progress,
        )

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self.models.close()
        self._repeats.close()

    def tick(self, shard: Shard, steps: int) -> None:
        """Count steps of a shard that is in training, in any thread."""
        with self._lock:
            self._ticked[shard.number] = self._ticked.get(shard.number, 0) + steps
            self.models.update(steps)

    def count(self, shard: Shard, failed: int = 0) -> None:
        self._failed += failed
        self.models.set_postfix_str(f"{self._failed:,} failed" if self._failed else "", refresh=False)
        self.models.update((shard.stop - shard.start) * self._each - self._ticked.pop(shard.number, 0))
        self._left[shard.repeat] -= 1
        self._repeats.update(self._left[shard.repeat] == 0)
