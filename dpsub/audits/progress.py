"""Progress bars of an audit."""

from __future__ import annotations

from tqdm.auto import tqdm

from dpsub.audits.plans import Plan, Shard


class Bars:
    """A bar of models, with their rate and the time left, and a second bar of repeats if there are several."""

    def __init__(self, plan: Plan, missing: list[Shard], progress: bool) -> None:
        self._left = [sum(shard.repeat == repeat for shard in missing) for repeat in range(plan.repeats)]
        done, total = self._left.count(0), plan.runs * plan.repeats
        self._repeats = tqdm(
            total=plan.repeats, initial=done, unit=" repeats", desc="repeats", disable=not progress or plan.repeats == 1
        )
        self.models = tqdm(
            total=total,
            initial=total - sum(shard.stop - shard.start for shard in missing),
            unit=" models",
            desc=f"{plan.canaries[0].scenario} on {plan.task.name}",
            disable=not progress,
        )

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self.models.close()
        self._repeats.close()

    def count(self, shard: Shard) -> None:
        self.models.set_postfix_str("", refresh=False)
        self.models.update(shard.stop - shard.start)
        self._left[shard.repeat] -= 1
        self._repeats.update(self._left[shard.repeat] == 0)
