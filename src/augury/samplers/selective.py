"""Epochs that leave out what teaches little: importance sampling as iCache applies it to input and output.

Chen et al., "iCache: An Importance-Sampling-Informed Cache for Accelerating I/O-Bound DNN Model Training", HPCA 2023,
section III-A; the choice by loss percentiles is Selective-Backprop's (Jiang et al., 2019). Nobody is repeated: an epoch
visits a sample once or not at all. What losses amount to is the scorers' business, what is held the policies'.
docs/recipes/icache.md lists where this differs from the paper and why.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids, Scores
from augury.knowledge import Knowledge
from augury.samplers import View
from augury.samplers.bounded import bounded, rounded
from augury.samplers.ranks import portion
from augury.samplers.shuffle import Shuffle, epoch_rng

BETA = 0.33
"""A sample whose loss is higher than that of a share p of all is kept with the chance p^beta: three in four are."""
WARM_UP = 5
"""The first epochs visit everything: losses of a model that has learned nothing say little."""
REUSE = 3
"""From then on every third epoch visits everything, so that nobody's importance grows too old."""
HARDEST = 0.99
"""Whose loss is higher than this share of all is always kept."""


class IIS:
    """I/O-oriented importance sampling: an epoch's samples are chosen before it begins, and only they are fetched.

    Between full epochs (the first `warm_up`, and every `reuse`-th after them) the share 1/(1 + beta) of the samples is
    kept, exactly so many; of equal importance any. Several ranks divide each epoch's samples at random.
    """

    foreseeable = False
    skips = False

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        count: int | None = None,
        *,
        beta: float = BETA,
        warm_up: int = WARM_UP,
        reuse: int | None = REUSE,
    ) -> None:
        if not 0 <= beta <= 10:
            raise ConfigError(f"beta={beta}: give a power from 0 (all are kept) to 10")
        if warm_up < 1:
            raise ConfigError(f"warm_up={warm_up}: give a number of epochs from 1 on; before, no loss is known")
        if reuse is not None and reuse < 1:
            raise ConfigError(f"reuse={reuse}: give a number of epochs, or None for no full epoch after the warm-up")
        self.samples, self.seed, self.rank, self.world_size = samples, seed, rank, world_size
        self.count = -(-samples // world_size) if count is None else count
        self.beta, self.warm_up, self.reuse = beta, warm_up, reuse

    def part(self, epoch: int) -> float:
        return 1.0 if self._is_full(epoch) else 1 / (1 + self.beta)

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        return self._everything(epoch) if self._is_full(epoch) else self._chosen(epoch, known)

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        if self._is_full(epoch):
            return None
        everybody = np.arange(self.samples) if len(known.scores) else np.empty(0, np.int64)
        mine, chances = self._chances(epoch, known)
        weights = np.ones(self.samples, np.float32)  # other ranks' samples may stand in for mine: by their own chances
        for ids, chance in ((everybody, self._percentiles(known, everybody) ** self.beta), (mine, chances)):
            share = self._kept / max(1, len(mine))
            weights[ids] = np.where(chance > 0, share / np.maximum(chance, 1e-30), 0)  # of chance 0: they do not come
        return weights

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        return drawn

    def _is_full(self, epoch: int) -> bool:
        since = epoch - self.warm_up
        return 1 + self.beta == 1 or since < 0 or (self.reuse is not None and since % self.reuse == self.reuse - 1)

    @property
    def _kept(self) -> int:
        return portion(self.samples, self.world_size, 1 / (1 + self.beta))

    def _everything(self, epoch: int) -> Ids:
        every = Shuffle(self.samples, self.seed).draw(epoch, Knowledge.none(0))
        return np.resize(every, self.count * self.world_size)[self.rank :: self.world_size]

    def _chosen(self, epoch: int, known: Knowledge) -> Ids:
        mine, chances = self._chances(epoch, known)
        return mine[rounded(epoch_rng(self.seed, epoch, 1 + self.rank), chances, self._kept)]

    def _chances(self, epoch: int, known: Knowledge) -> tuple[Ids, NDArray[np.floating]]:
        """Who is this rank's to choose from, in random order, and with which chance each is kept."""
        every = Shuffle(self.samples, self.seed).draw(epoch, known)
        mine = np.resize(every, max(self.samples, self.world_size))[self.rank :: self.world_size]
        mine = mine[: max(1, self.samples // self.world_size)]
        percentiles = self._percentiles(known, mine)
        return mine, bounded(percentiles**self.beta, self._kept, np.flatnonzero(percentiles > HARDEST))

    @staticmethod
    def _percentiles(known: Knowledge, ids: Ids) -> NDArray[np.float64]:
        """Where each stands among them by importance, from above 0 to 1; of equals, the later the higher."""
        percentiles = np.empty(len(ids))
        lowest_first = known.scores[ids].argsort(kind="stable") if len(known.scores) else np.arange(len(ids))
        percentiles[lowest_first] = np.linspace(1 / max(1, len(ids)), 1, len(ids))
        return percentiles


class CIS(IIS):
    """Computing-oriented importance sampling: everything is fetched, and training is handed what IIS would choose.

    What importance sampling is without iCache: it saves computing, and no reads.
    """

    skips = True

    def part(self, epoch: int) -> float:
        return 1.0

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        return self._everything(epoch)

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        weights = super().weights(epoch, known)
        if weights is not None:
            left_out = np.ones(self.samples, np.bool_)
            left_out[self._chosen(epoch, known)] = False
            weights[left_out] = 0
        return weights
