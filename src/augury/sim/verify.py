"""Law 1, checked: a live run's call log, replayed on fresh twins, reproduces every decision.

The twins are the live classes, built from the recipe, the seed and the levels that the log names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augury.ids import NONE, Ids, Mask
from augury.policies import Policy
from augury.recipes import Recipe, find, policy_rng
from augury.trace import Record, Trace


@dataclass(frozen=True)
class Difference:
    """The first decision that a twin made otherwise."""

    record: int
    op: str
    level: int
    recorded: str
    decided: str

    def __str__(self) -> str:
        where = f"call {self.record:,} ({self.op}, level {self.level})"
        return f"{where}: the log says {self.recorded}, the twin {self.decided}"


def verify(trace: Trace, recipe: Recipe | None = None) -> tuple[int, Difference | None]:
    """Replay the log on fresh twins: how many calls agreed, and the first that did not (None: all agreed).

    `recipe` need be given only where the run used one that is not in the table.
    """
    recipe = recipe or find(trace.header["recipe"])
    seed, levels = int(trace.header["seed"]), trace.levels()
    twins = [recipe.policy_at(at)(costs, room, policy_rng(seed, at)) for at, (room, costs) in enumerate(levels)]
    calls = 0
    for record in trace:
        if record.op in ("level", "epoch"):
            continue
        recorded = _decision(record.kept, record.ids if _unchanged(record) else record.answer)
        decided = _decision(*_again(twins[record.level], record))
        if recorded != decided:
            return calls, Difference(calls + 1, record.op, record.level, _tell(recorded), _tell(decided))
        calls += 1
    return calls, None


_Decision = tuple[list[int], list[int]]


def _again(twin: Policy, record: Record) -> tuple[Mask | None, Ids | None]:
    """The same call on the twin: which newcomers it keeps, and the ids it returns."""
    match record.op:
        case "serve":
            return None, twin.serve(record.ids, record.job)
        case "admit":
            return twin.admit(record.ids)
        case "plan":
            return None, twin.plan(record.ids, record.job, record.times, NONE if record.later is None else record.later)
        case "wanted":
            return None, twin.wanted(record.number)
        case "learn":
            assert record.scores is not None
            twin.learn(record.ids, record.scores, record.kin)
        case "progress":
            assert record.scores is not None
            done, *told = record.scores.tolist()
            twin.progress(done, told[: record.number], told[record.number :])
        case "resize":
            return None, twin.resize(record.number)
        case "forget":
            twin.forget(record.ids)
        case "adopt":
            return None, twin.adopt(record.ids)
        case "leave":
            twin.leave(record.job)
    return None, None


def _unchanged(record: Record) -> bool:
    return record.op == "serve" and record.answer is None


def _decision(kept: Mask | None, ids: Ids | None) -> _Decision:
    return [] if kept is None else np.flatnonzero(kept).tolist(), [] if ids is None else ids.tolist()


def _tell(decision: _Decision) -> str:
    kept, ids = (f"{part[:8]}{' ...' if len(part) > 8 else ''}" for part in decision)
    return f"kept {kept}, ids {ids}" if decision[0] else f"ids {ids}"
