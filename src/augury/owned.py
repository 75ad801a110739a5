"""What a loader must close, in which order, and where: not in a forked child, not in one of its own threads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from augury.staging import Staging


class Owned:
    """What must be closed with the loader, in the order of use. Does not refer to the loader itself."""

    def __init__(self) -> None:
        self.staging: Staging | None = None
        self._parts: list[Any] = []
        self._ends: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def keep(self, part: Any, unless: Any = None) -> Any:
        """Close `part` later, unless it is the user's own."""
        if part is not unless:
            self._parts.append(part)
        return part

    def call(self, end: Callable[[], None]) -> None:
        """Call it later."""
        self._ends.append(end)

    def close(self) -> None:
        if os.getpid() != self._pid:  # a forked child has copies of our parts, but not the threads
            return
        if threading.current_thread().name.startswith("augury-"):
            # The garbage collector found the loader in one of its own threads, which cannot wait for itself.
            threading.Thread(target=self._close).start()
        else:
            self._close()

    def _close(self) -> None:
        with contextlib.ExitStack() as parts:  # closes all, also where one fails
            for part in self._parts:
                parts.callback(part.close)
            for end in self._ends:
                parts.callback(end)
            if self.staging is not None:
                parts.callback(self.staging.close)
        self._parts.clear()
        self._ends.clear()
