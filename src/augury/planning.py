"""A loader that knows the run ahead: when the cache is told, who fills the levels, and whom samples are read from.

Between the loader (training's thread) and the parts that do the work: schedule.py computes what will be requested,
filling.py reads it early, holders.py asks the performance model. For a recipe without foresight it does nothing.
"""

from __future__ import annotations

import warnings

from augury.distributed import Place
from augury.errors import AuguryWarning, ConfigError
from augury.filling import THREADS, Filler
from augury.gather import Gatherer
from augury.holders import slower_than_source
from augury.knowledge import Knowledge
from augury.policies import Foresight
from augury.recipes import Recipe
from augury.schedule import Schedule
from augury.storage import Storage


def check_epochs(recipe: Recipe, epochs: int | None) -> None:
    """Who plans the whole run must know how long it is."""
    if recipe.foresight == Foresight.RUN and epochs is None:
        raise ConfigError(
            f"recipe {recipe.name!r} plans the whole run before it begins: say how many epochs there will be, like "
            "epochs=90"
        )


class Planning:
    """What one loader knows of its run. Called by the training thread."""

    def __init__(
        self, foresight: Foresight, gatherer: Gatherer, storage: Storage | None, filling: int, readers: int
    ) -> None:
        self.each_epoch = foresight == Foresight.EPOCHS
        """Whether the cache is told each epoch when it is drawn."""
        self.filler: Filler | None = None
        self._gatherer, self._storage, self._readers = gatherer, storage, readers
        self._tiers = [level.tier for level in gatherer.cache.levels]
        self._told: tuple[int, Place, tuple[int, int]] | None = None
        """The seed, the rank, and from where on the cache knows the run."""
        if foresight == Foresight.RUN:
            threads = {level.name: level.threads for level in (() if storage is None else storage.levels)}
            self.filler = Filler(gatherer, [threads.get(tier.name, THREADS) for tier in self._tiers], filling)

    def start(self, schedule: Schedule, seed: int, epoch: int, offset: int, known: Knowledge) -> None:
        """A walk begins there. Tells the cache the run, unless it knows: then every sample keeps its place."""
        self._choose_holders(schedule.place.world_size)
        if self.filler is None:
            return
        if self._told is not None and self._told[:2] == (seed, schedule.place) and self._told[2] <= (epoch, offset):
            return
        schedule.tell_run(epoch, offset, self._gatherer.cache, known)
        self._told = seed, schedule.place, (epoch, offset)

    def restart(self) -> None:
        """A state was loaded: what remains of its run is planned anew."""
        self._told = None

    def _choose_holders(self, nodes: int) -> None:
        names = [tier.name for tier in self._tiers]
        slower = slower_than_source(self._storage, names, nodes, self._readers)
        slower -= {depth for depth, tier in enumerate(self._tiers) if tier.instant}  # copied, not read
        usable = min(slower, default=len(self._tiers))
        if usable < self._gatherer.cache.depth:
            self._gatherer.cache.use(usable)
            warnings.warn(
                f"by what levels= has measured, the source is faster than {names[usable]}, even if all read from it at "
                "once: that level is not used",
                AuguryWarning,
                stacklevel=6,
            )
