"""What a loader has handed out: its statistics by epoch, and the samples that could not be used.

Counted in the training thread, when a batch is taken. What the counters mean is metrics.py's business.
"""

from __future__ import annotations

import copy
import warnings

from augury.batch import Bad, Finished
from augury.errors import AuguryWarning
from augury.metrics import EpochStats
from augury.staging import Staged


class Tally:
    """Statistics and quarantine of one loader."""

    def __init__(self, on_error: str) -> None:
        self.quarantine: list[Bad] = []
        """Each once."""
        self._on_error = on_error
        self._epochs: dict[int, EpochStats] = {}

    def epoch(self, number: int) -> EpochStats:
        """The counters of an epoch, to be added to."""
        return self._epochs.setdefault(number, EpochStats(number))

    def epochs(self) -> list[EpochStats]:
        """Copies, in order."""
        return [copy.deepcopy(self._epochs[number]) for number in sorted(self._epochs)]

    def note(self, epoch: int, staged: Staged, finished: Finished, distinct: int, waited: float) -> None:
        """One batch was taken."""
        raw, batches, bad = staged.raw, 0 if finished.batch is None else 1, len(finished.bad)
        taken = EpochStats(epoch, raw.counts, batches, distinct, raw.bytes_from, raw.unasked_bytes, bad, waited)
        self.epoch(epoch).add(taken)
        if finished.bad and not self.quarantine:
            warnings.warn(
                f"{finished.bad[0]}. Training goes on (on_error={self._on_error!r}); "
                "this and all others are listed in loader.quarantine.",
                AuguryWarning,
                stacklevel=4,
            )
        known = {bad.id for bad in self.quarantine} if finished.bad else set()
        self.quarantine.extend(bad for bad in finished.bad if bad.id not in known)
