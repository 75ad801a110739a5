"""What training says of samples, turned into one importance score per id.

Each module is one kind of evidence. A scorer sees one minibatch's report at a time; it knows nothing of caches or
orders, and it does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Scores

Losses: TypeAlias = NDArray[np.float32]


class Scorer(Protocol):
    """Scores minibatches, in the order in which they are reported. One owner thread."""

    def score(self, ids: Ids, losses: Losses) -> Scores:
        """The importance of each sample of one minibatch; never negative."""

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, in strings and plain numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` saved; ConfigError, and nothing changes, where that is damaged."""


MakeScorer: TypeAlias = Callable[[int], Scorer]
"""(samples) -> scorer."""
