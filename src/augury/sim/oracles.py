"""Recipes that only a simulator can follow, because they know what no live run could: what others are measured against.

`pads-min` visits what `augury` draws, in the order of the draw, and knows all epochs to the end: no policy reads less
in that order. The recipes of live runs are in recipes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from augury import recipes
from augury.errors import UnknownName
from augury.ids import Ids
from augury.knowledge import Knowledge
from augury.policies import Foresight
from augury.policies.classic import MIN
from augury.recipes import RECIPES, Recipe


@dataclass(frozen=True)
class Oracle(Recipe):
    """A policy that is told what another recipe will have drawn."""

    of: str = ""
    """The recipe that draws."""

    def draws(self, run: Callable[[Recipe], Any]) -> list[Ids]:
        """What that recipe draws for each epoch, before it is arranged; `run` lets it run."""
        recipe, drawn = RECIPES[self.of], dict[int, Ids]()

        class Noting:
            """Its sampler, with an eye on it."""

            def __init__(
                self, samples: int, seed: int, rank: int = 0, world_size: int = 1, count: int | None = None
            ) -> None:
                sampler = recipe.sampler(samples, seed, rank, world_size, count)
                self.foreseeable, self.weights, self.arrange = sampler.foreseeable, sampler.weights, sampler.arrange
                self.skips, self.part = sampler.skips, sampler.part
                self._draw = sampler.draw

            def draw(self, epoch: int, known: Knowledge) -> Ids:
                drawn[epoch] = self._draw(epoch, known)
                return drawn[epoch]

        run(replace(recipe, sampler=Noting))
        return [drawn[epoch] for epoch in sorted(drawn)]


ORACLES = {
    oracle.name: oracle
    for oracle in (
        Oracle(
            "pads-min",
            MIN,
            "what augury draws, in the order of the draw, under MIN that knows all epochs",
            foresight=Foresight.RUN,
            of="augury",
        ),
    )
}


def find(name: str | Recipe) -> Recipe:
    """As `recipes.find`, and the oracles too."""
    if isinstance(name, str) and name in ORACLES:
        return ORACLES[name]
    try:
        return recipes.find(name)
    except UnknownName:
        raise UnknownName("recipe", str(name), [*RECIPES, *ORACLES]) from None
