"""What training says of samples, turned into one importance score per id.

Each module is one kind of evidence. A scorer sees one minibatch's report at a time; it knows nothing of caches or
orders, and it does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Scores

Losses: TypeAlias = NDArray[np.float32]
"""One per sample."""
Embeddings: TypeAlias = NDArray[np.float32]
"""One row per sample."""
Labels: TypeAlias = NDArray[np.int64]

Needs: TypeAlias = Literal["losses", "embeddings"]


class Scorer(Protocol):
    """Scores minibatches, in the order in which they are reported. One owner thread."""

    @property
    def needs(self) -> Needs:
        """What it scores by; labels come with embeddings."""

    @property
    def patience(self) -> int | None:
        """Its work takes long, and may be left undone: once so many later minibatches wait. None: all is scored, and
        the same run gives the same scores."""

    def score(self, ids: Ids, evidence: Losses | Embeddings, labels: Labels | None = None, /) -> Scores:
        """The importance of each sample of one minibatch; never negative."""

    @property
    def kin(self) -> Ids | None:
        """Of the minibatch that was scored last: the one that most others are like, and after it these others, which it
        may stand in for. None: there is none."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, in strings and plain numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` saved; ConfigError, and nothing changes, where that is damaged."""


MakeScorer: TypeAlias = Callable[[int], Scorer]
"""(samples) -> scorer."""
