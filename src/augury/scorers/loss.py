"""Importance from the loss of each sample: its rank in the minibatch (SHADE), its percentiles so far (iCache),
the minibatch's mean, or as it is.

Khan et al., "SHADE: Enable Fundamental Cacheability for Distributed Deep Learning Training", FAST 2023, section
4.2.1. The losses are per-sample cross entropies (Eqs. 3 and 4), as `augury.torch.per_sample_cross_entropy` gives them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from augury.errors import ConfigError
from augury.ids import Ids, Scores
from augury.knowledge import pack, unpack
from augury.scorers import Labels, Losses, Needs

RANK_BIAS = 10
"""b0 of Eq. 6. The paper leaves it open; its public code has 10. A minibatch of 256 then scores from 2.30 to 5.58."""


WINDOW = 1024
"""How many losses a percentile is of: iCache's public code has 1,024."""
MEMORY = 0.5
"""The weight of what was known of a sample before a visit."""


class _OfLosses:
    """These scorers remember nothing."""

    needs: Needs = "losses"
    patience: int | None = None
    kin: Ids | None = None

    def __init__(self, samples: int = 0) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class LossRank(_OfLosses):
    """Eq. 6: ln(how many samples of the minibatch have a lower loss + b0).

    Ranks of all minibatches and epochs lie in one range, so that scores may be compared although losses fall. Of equal
    losses, the later in the minibatch ranks higher (Eq. 6 would give them one rank; the paper's code, too, sorts).
    """

    def score(self, ids: Ids, losses: Losses, labels: Labels | None = None) -> Scores:
        rank = np.empty(len(losses), np.float32)
        rank[losses.argsort(kind="stable")] = np.arange(RANK_BIAS, RANK_BIAS + len(losses))
        return np.log(rank, out=rank)


class BatchLoss(_OfLosses):
    """The minibatch's mean loss (Eq. 5) for all its samples: the coarse score of importance sampling before SHADE."""

    def score(self, ids: Ids, losses: Losses, labels: Labels | None = None) -> Scores:
        return np.full(len(losses), max(0.0, losses.mean()) if len(losses) else 0, np.float32)


class LossHistory(_OfLosses):
    """Where a sample's losses stood among the others of their time: the percentile of each visit, older ones fading.

    iCache's historical importance (HPCA 2023, section III-A). A percentile is the share of the last losses, of this
    minibatch and those before it, that a loss reaches or exceeds: those of all epochs lie in one range, although losses
    fall. The hardest scores 1, and nobody 0. The paper's public code keeps the last percentile alone; with the half of
    what was before, noise moves fewer samples in and out of the cache (docs/decisions/0010-icache.md).
    """

    def __init__(self, samples: int = 0, *, memory: float = MEMORY) -> None:
        if not 0 <= memory < 1:
            raise ConfigError(f"memory={memory}: give the weight of earlier visits, from 0 (none) to below 1")
        self._memory = memory
        self._window = np.empty(0, np.float32)
        self._before = np.full(samples, np.nan, np.float32)

    def score(self, ids: Ids, losses: Losses, labels: Labels | None = None) -> Scores:
        self._window = np.concatenate([self._window, losses])[-max(WINDOW, len(losses)) :]
        ordered = np.sort(self._window)
        scores = (ordered.searchsorted(losses, side="right") / max(1, len(ordered))).astype(np.float32)
        before = self._before[ids]
        scores += self._memory * np.where(np.isnan(before), 0, before - scores)
        self._before[ids] = scores
        return scores

    def state_dict(self) -> dict[str, Any]:
        return {"window": pack(self._window), "before": pack(self._before)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            window, before = unpack(state["window"], np.float32), unpack(state["before"], np.float32)
        except KeyError as error:
            raise ConfigError(f"this state is damaged: the scorer's {error} is not there") from None
        if len(before) != len(self._before):
            raise ConfigError(f"this state is damaged: it remembers {len(before)} samples, not {len(self._before)}")
        self._window, self._before = window, before


class RawLoss(_OfLosses):
    """The loss as it is; a negative one, which some objectives have, counts as nothing left to learn."""

    def score(self, ids: Ids, losses: Losses, labels: Labels | None = None) -> Scores:
        return np.maximum(losses, 0, dtype=np.float32)
