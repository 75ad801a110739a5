"""Each paper, and each ablation, as one line of a table: which scorer, which sampler, which policy.

A recipe is a name for a combination; it holds no state. To add one, add a line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from augury.errors import ConfigError, UnknownName
from augury.policies import Foresight, MakePolicy
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Nothing, Random
from augury.policies.foresight import NextUse
from augury.policies.icache import FromHigh, ICache
from augury.policies.importance import ByImportance
from augury.policies.placement import Placement
from augury.policies.shade import APP, APPByLot, ByScore, ByScoreAndUse
from augury.policies.spider import Important, Spider
from augury.samplers import MakeSampler
from augury.samplers.bounded import Bounded
from augury.samplers.foresight import Frugal
from augury.samplers.importance import PADS, PaperPADS, Weighted
from augury.samplers.selective import CIS, IIS
from augury.samplers.shuffle import Shuffle
from augury.scorers import MakeScorer
from augury.scorers.graph import Graph
from augury.scorers.loss import BatchLoss, LossHistory, LossRank

EPOCHS, RUN = Foresight.EPOCHS, Foresight.RUN
UNREPEATED = partial(PADS, repetition=1)
"""Drawn by score alone, and nobody left out for long."""


@dataclass(frozen=True)
class Recipe:
    """A named combination of parts."""

    name: str
    policy: MakePolicy
    summary: str
    sampler: MakeSampler = Shuffle
    scorer: MakeScorer | None = None
    """What makes scores of losses or embeddings; None: feedback is of no use to this recipe."""
    foresight: Foresight = Foresight.NOTHING
    """How much of the future the policy is told with `plan`, as far as it is known."""
    lookahead: float = 0.0
    """How many epochs before it starts (0 to 1) an epoch is drawn, where that takes what was learned. The earlier, the
    more is known of whom to keep, and the older are the scores that it is drawn by."""

    below: MakePolicy | None = None
    """The policy of the levels below the topmost, where that is another one."""
    shared: bool = False
    """Whether several loaders may draw, tell and plan on one cache."""

    def __post_init__(self) -> None:
        if not 0 <= self.lookahead <= 1:
            raise ConfigError(f"lookahead={self.lookahead}: give a part of an epoch, from 0 to 1")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Another process takes one of the table from its own table."""
        return (find, (self.name,)) if RECIPES.get(self.name) is self else super().__reduce__()

    def policy_at(self, level: int) -> MakePolicy:
        """The policy of a level, the topmost being 0."""
        return self.policy if level == 0 or self.below is None else self.below

    @property
    def substitutes(self) -> bool:
        """Whether others may be handed out than were asked for."""
        return self._says("refills")

    @property
    def packs(self) -> bool:
        """Whether its policy wants samples by the package."""
        return self._says("packs")

    def _says(self, name: str) -> bool:
        made = self.policy.func if isinstance(self.policy, partial) else self.policy
        return bool(getattr(made, name, False))

    @property
    def learns(self) -> bool:
        """Whether it draws or keeps by what training reports; otherwise every epoch visits every sample once."""
        return self.scorer is not None


SPIDER = Recipe(
    "spider",
    Spider,
    "the unlike are drawn and kept; those that many are like stand in for them (SpiderCache)",
    UNREPEATED,
    Graph,
    foresight=EPOCHS,
    below=Important,
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("none", Nothing, "holds nothing: the cost of training without a cache"),
        Recipe(
            "augury-exact",
            NextUse,
            "every sample once per epoch; whoever is needed last leaves (foresight)",
            foresight=EPOCHS,
        ),
        Recipe(
            "augury",
            NextUse,
            "the important are drawn an epoch early, in the order of fewest reads (foresight)",
            partial(Frugal, base=Bounded),
            LossRank,
            foresight=EPOCHS,
            lookahead=1.0,
        ),
        Recipe("lru", LRU, "the least recently used leaves"),
        Recipe("lfu", LFU, "the least often used leaves"),
        Recipe("fifo", FIFO, "the longest held leaves"),
        Recipe("random", Random, "any one leaves"),
        Recipe("minio", MinIO, "fill, then never evict (CoorDL)"),
        Recipe("min", MIN, "the one needed furthest in the future leaves (Belady)", foresight=EPOCHS),
        Recipe("hdmlp", Placement, "the most often requested have a place, filled ahead (HDMLP)", foresight=RUN),
        Recipe("shade", APPByLot, "the important are drawn, kept, repeated (SHADE)", PADS, LossRank, foresight=EPOCHS),
        Recipe("shade-1", APPByLot, "SHADE without repetition", UNREPEATED, LossRank, foresight=EPOCHS),
        Recipe(
            "shade-paper",
            APP,
            "SHADE as its public code: hits first, nothing explored",
            PaperPADS,
            LossRank,
            foresight=EPOCHS,
        ),
        Recipe(
            "sh-app",
            APP,
            "SHADE's cache, but minibatch losses and plain importance sampling",
            Weighted,
            BatchLoss,
            foresight=EPOCHS,
        ),
        Recipe("sh-pq", ByScore, "minibatch losses; the least important leaves", Weighted, BatchLoss),
        Recipe("sh-pqlfu", ByScoreAndUse, "as sh-pq; of equals the least often used leaves", Weighted, BatchLoss),
        Recipe("sh-lru", LRU, "minibatch losses draw; the least recently used leaves", Weighted, BatchLoss),
        Recipe("sh-lfu", LFU, "minibatch losses draw; the least often used leaves", Weighted, BatchLoss),
        Recipe("cis-lru", LRU, "everything is fetched, less is computed (iCache's Base)", CIS, LossHistory),
        Recipe("iis-lru", LRU, "the important are fetched; the least recently used leaves", IIS, LossHistory),
        Recipe("iis-h", ByImportance, "the important are fetched and kept", IIS, LossHistory, foresight=EPOCHS),
        Recipe(
            "icache",
            ICache,
            "the important are fetched and kept; others stand in for each other (iCache)",
            IIS,
            LossHistory,
            foresight=EPOCHS,
            below=ByImportance,
            shared=True,
        ),
        Recipe(
            "icache-sthc",
            FromHigh,
            "as icache; the important stand in",
            IIS,
            LossHistory,
            foresight=EPOCHS,
            below=ByImportance,
        ),
        SPIDER,
        Recipe("spider-imp", Important, "SpiderCache without stand-ins", UNREPEATED, Graph, foresight=EPOCHS),
        replace(
            SPIDER,
            name="spider-90",
            policy=partial(Spider, end=0.9),
            summary="SpiderCache, a tenth for stand-ins throughout",
        ),
        replace(
            SPIDER,
            name="spider-90-50",
            policy=partial(Spider, end=0.5),
            summary="SpiderCache, a tenth for stand-ins at first and half at last",
        ),
        Recipe(
            "augury-spider",
            partial(Spider, section=NextUse),
            "as augury, by likeness instead of losses, and with stand-ins",
            partial(Frugal, base=Bounded),
            Graph,
            foresight=EPOCHS,
            lookahead=1.0,
            below=NextUse,
        ),
        Recipe("ilfu", LFU, "the important are fetched; the least often used leaves", IIS, LossHistory),
        Recipe("sh-rand", Random, "minibatch losses draw; any one leaves", Weighted, BatchLoss),
    )
}

DEFAULT = "augury-exact"


def find(name: str | Recipe) -> Recipe:
    """The recipe of that name; a recipe made by the user passes as it is."""
    if isinstance(name, Recipe):
        return name
    try:
        return RECIPES[name]
    except KeyError:
        raise UnknownName("recipe", name, RECIPES) from None


def policy_rng(seed: int, level: int) -> np.random.Generator:
    """The chance of one level's policy: the same in a live run, in the simulator and when a log is verified."""
    return np.random.default_rng([seed, level])
