"""Where samples are decoded and transformed: in threads, or in processes where the work holds the interpreter lock.

`Workers.submit` takes one batch of bytes and gives a future of a finished batch. Processes are started afresh (no
fork: storage clients and OpenMP do not survive one), ignore Ctrl-C, and end with the process that started them.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

from augury.batch import Finished, Finisher
from augury.errors import ConfigError
from augury.gather import Raw, Rows
from augury.transforms.chance import Chance


class Workers:
    """A pool that finishes batches."""

    def __init__(self, finish: Finisher, count: int | None = None, processes: bool = False) -> None:
        self._finish, self._processes = finish, processes
        count = count or os.cpu_count() or 1
        self._pool: Executor
        if processes:
            _check_sendable(finish)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, context, initializer=_prepare, initargs=(finish,))
        else:
            self._pool = ThreadPoolExecutor(count, "augury-worker")

    def submit(self, raw: Raw, chance: Chance) -> Future[Finished]:
        if self._processes:
            if isinstance(raw.rows, list):  # views cannot travel to another process
                rows: Rows = [bytes(row) if isinstance(row, memoryview) else row for row in raw.rows]
                raw = dataclasses.replace(raw, rows=rows)
            return self._pool.submit(_finish_here, raw, chance)
        return self._pool.submit(self._finish, raw, chance)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_finisher: Finisher | None = None


def _prepare(finish: Finisher) -> None:
    global _finisher
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _finisher = finish


def _end_with(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)  # the parent was killed: nobody is left to read the results


def _finish_here(raw: Raw, chance: Chance) -> Finished:
    assert _finisher is not None
    return _finisher(raw, chance)


def _check_sendable(finish: Finisher) -> None:
    """Functions travel to the worker processes as references to their modules; a lambda has none."""
    try:
        pickle.dumps(finish)
    except Exception as error:
        raise ConfigError(
            "processes=True needs a transform, collate and data that can be sent to another process "
            f"(functions of a module, no lambdas): {error}"
        ) from error
