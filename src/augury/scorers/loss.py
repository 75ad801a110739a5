"""Importance from the loss of each sample: its rank in the minibatch (SHADE), the minibatch's mean, or as it is.

Khan et al., "SHADE: Enable Fundamental Cacheability for Distributed Deep Learning Training", FAST 2023, section
4.2.1. The losses are per-sample cross entropies (Eqs. 3 and 4), as `augury.torch.per_sample_cross_entropy` gives them.
"""

from __future__ import annotations

import numpy as np

from augury.ids import Ids, Scores
from augury.scorers import Losses

RANK_BIAS = 10
"""b0 of Eq. 6. The paper leaves it open; its public code has 10. A minibatch of 256 then scores from 2.30 to 5.58."""


class _OfLosses:
    """These scorers remember nothing."""

    def __init__(self, samples: int = 0) -> None:
        pass


class LossRank(_OfLosses):
    """Eq. 6: ln(how many samples of the minibatch have a lower loss + b0).

    Ranks of all minibatches and epochs lie in one range, so that scores may be compared although losses fall. Of equal
    losses, the later in the minibatch ranks higher (Eq. 6 would give them one rank; the paper's code, too, sorts).
    """

    def score(self, ids: Ids, losses: Losses) -> Scores:
        rank = np.empty(len(losses), np.float32)
        rank[losses.argsort(kind="stable")] = np.arange(RANK_BIAS, RANK_BIAS + len(losses))
        return np.log(rank, out=rank)


class BatchLoss(_OfLosses):
    """The minibatch's mean loss (Eq. 5) for all its samples: the coarse score of importance sampling before SHADE."""

    def score(self, ids: Ids, losses: Losses) -> Scores:
        return np.full(len(losses), max(0.0, losses.mean()) if len(losses) else 0, np.float32)


class RawLoss(_OfLosses):
    """The loss as it is; a negative one, which some objectives have, counts as nothing left to learn."""

    def score(self, ids: Ids, losses: Losses) -> Scores:
        return np.maximum(losses, 0, dtype=np.float32)
