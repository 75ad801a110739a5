"""Where cached bytes rest: sources that can be filled.

A tier stores what its policy decided and nothing else: it never chooses, never evicts by itself, and refuses
to exceed its byte limit. All tiers pass `augury.testing.TierContract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from augury.ids import Ids
from augury.sources import Buffer


class Tier(Protocol):
    """Bytes by id that can be filled.

    Threads: `write` and `drop` come from one thread at a time; `read` may run beside them in other threads,
    for ids that are neither being written nor dropped at that moment.
    """

    name: str
    """How counters and messages call it: "ram", "disk"."""
    instant: bool
    """Whether reading is a copy in memory, rather than something to wait for in a reader thread."""
    capacity: int
    """Bytes it may hold, at every moment."""

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """What samples of these sizes cost here, in bytes of `capacity` (a disk rounds up to blocks)."""

    def read(self, ids: Ids) -> list[Buffer | None]:
        """One buffer per id; None where it is not held or its checksum does not match."""

    def write(self, ids: Ids, data: Sequence[Buffer]) -> None:
        """Hold these. Raises TierFailed where it cannot, then nothing more may be asked of the tier."""

    def drop(self, ids: Ids) -> None:
        """Hold these no longer; ids that are not held are passed over."""

    def found(self) -> Ids:
        """Ids held from an earlier run, to be adopted by the policy."""

    def close(self) -> None:
        """Give back memory and files; what is on disk stays for the next run."""
