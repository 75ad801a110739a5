"""`augury stats`: what this machine's node has done so far, for people or for programs."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from augury.commands.nodes import HOLDERS, Numbers, Report, Socket, duration, overview, percent, reach, report_of
from augury.units import format_size

TITLES = ("age", "requests", "hits", "stall"), HOLDERS


def stats(
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
    socket: Socket = None,
) -> None:
    """What this machine's node has done: shelves, jobs, hits, bytes by holder.

    Users see their own jobs; the node's own user and root see all. For rates
    as they are now: augury top.

    The keys of --json (more may come, none will change; bytes, seconds, and
    ratios per request):

      version, pid, seconds, socket, clients

      shelves   name, capacity, used, samples, idle (held by no job)

      counts    refused, bad_messages, poisoned, errors, damaged, unwritten

      jobs      name, user, recipe, clients, began, seconds, samples,
                shares and used (a number per shelf), charged, requests,
                hit_ratio, substitutes, joined, misses, reads, bytes_from,
                refused, stall_seconds

    Examples:

      augury stats

      augury stats --json | jq '.jobs[] | {name, hit_ratio, bytes_from}'

      augury stats --socket /run/augury/node.sock
    """
    node = reach(socket)
    report = report_of(node)
    node.close()
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console(highlight=False)
    console.print(overview(report, TITLES, [_totals(job) for job in report["jobs"]], console))


def _totals(job: Report) -> Numbers:
    numbers = [duration(job["seconds"]), f"{job['requests']:,}", percent(job["hit_ratio"])]
    held = [format_size(job["bytes_from"].get(holder, 0)) for holder in HOLDERS]
    return [*numbers, f"{job['stall_seconds']:.0f} s"], held
