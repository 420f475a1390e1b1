"""CRPS of tonight's models and of registered ones on the same test rows, each computed or read once."""

from collections.abc import Iterable
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import Compared
from tasks.judging.gate import Contender
from tasks.promotion.contenders import Candidate
from tasks.promotion.losses import Losses, Task, compare, predicted, scored


class Comparisons:
    """Losses by model; those that cannot be read are known as such."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._losses: dict[str, Losses | DamagedError] = {}

    def predict(self, wanted: Iterable[tuple[Candidate, Contender]]) -> None:
        """Predict registered models on tonight's test spans, those that are not known yet, all at once."""
        todo = {
            one.run_id + str(one.series): (c, one) for c, one in wanted if self._key(one) not in self._losses
        }
        if not todo:
            return
        ends = [(c.model.tested_from, c.model.tested_until) for c, _ in todo.values()]
        start, stop = min(a for a, _ in ends if a), max(b for _, b in ends if b)
        tasks = [Task(one, candidate.features) for candidate, one in todo.values()]
        for (_, one), found in zip(todo.values(), predicted(self._home, tasks, start, stop), strict=True):
            self._losses[self._key(one)] = found

    def losses_of(self, one: Contender | Candidate) -> Losses | DamagedError:
        """Return a model's losses; those of a registered one must have been predicted before."""
        key = self._key(one.model if isinstance(one, Candidate) else one)
        if key not in self._losses and isinstance(one, Candidate):
            try:
                self._losses[key] = scored(one.score)
            except FileNotFoundError:
                self._losses[key] = DamagedError(f"{one.score} is missing", field=str(one.score))
            except DamagedError as error:
                self._losses[key] = error
        return self._losses[key]

    def compared(self, candidate: Candidate, incumbent: Contender) -> Compared | DamagedError | None:
        """Compare on the origins of tonight's test span that lie in the incumbent's, too."""
        found, theirs = self.losses_of(candidate), self.losses_of(incumbent)
        if isinstance(found, DamagedError) or isinstance(theirs, DamagedError):
            return theirs if isinstance(theirs, DamagedError) else None
        # A folder that does not say what it has learnt may know these rows: it then looks better than it is.
        mine = found.since(incumbent.tested_from)
        step_us = candidate.model.series.seconds * 1_000_000
        return compare(mine, theirs, horizon=candidate.model.horizon, step_us=step_us)

    @staticmethod
    def _key(one: Contender) -> str:
        return f"{one.series.name}/{one.run_id}"
