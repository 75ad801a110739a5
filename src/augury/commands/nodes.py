"""What the commands that watch and stop a node share: how to reach it, and how its state is written for people."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from augury.errors import AuguryError
from augury.node import protocol
from augury.node.client import Connection, NodeGone, NodeRefuses
from augury.node.config import place_of
from augury.node.protocol import printable
from augury.units import format_size

HOLDERS = "ram", "disk", "shared", "source"
"""Who gives bytes: a job's own levels, other jobs' (or idle content), or the store."""
_LONGEST = {"job": 21, "user": 10, "recipe": 14}
"""Letters of names, so that all fits in 80 columns."""
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))

Report = dict[str, Any]
Numbers = tuple[Sequence[str], Sequence[str]]
"""Of a job: how it fares, and bytes by holder. Or the titles of these."""
Socket = Annotated[
    Path | None,
    typer.Option(metavar="PATH", readable=False, help="Where the node is; else AUGURY_NODE, or the user's own."),
]


def reach(socket: Path | None) -> Connection:
    """A connection to the node; where there is none for this user, an error that says what to do."""
    path = place_of(socket)
    try:
        return Connection(path, "augury")
    except NodeRefuses:
        raise
    except NodeGone as error:
        raise AuguryError(_why_not(path, error)) from None


def report_of(node: Connection) -> Report:
    """What the node is doing."""
    return node.ask(protocol.Report(), protocol.Told)[0].report


def overview(report: Report, titles: Numbers, numbers: Sequence[Numbers], console: Console) -> Group:
    """The whole view: the node, its shelves, its jobs with the numbers of each, and incidents."""
    jobs = _jobs(report, titles, numbers, console)
    return Group(_headline(report), "", _shelves(report), "", *jobs, _incidents(report))


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def duration(seconds: float) -> str:
    """Like 12 s, 3 min 20 s, 2 h 5 min or 3 d 4 h."""
    left = max(0, int(seconds))
    parts = []
    for name, size in _UNITS:
        parts.append((left // size, name))
        left %= size
    first = next((at for at, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2])


def _why_not(path: Path, error: NodeGone) -> str:
    start = f"start one with: augury serve --socket {path}"
    try:
        if not path.exists():
            return f"there is no node at {path}: {start}, or say with --socket where it is"
    except PermissionError:
        return f"there is no node at {path} for this user, who may not even look there"
    if "Permission denied" in str(error):
        return f"the node at {path} is another user's, and was not started with --group for one of this user's groups"
    if "refused" in str(error):
        return f"the node at {path} has been killed: {start}"
    return str(error)


def _headline(report: Report) -> Text:
    count = report["clients"]
    facts = f"process {report['pid']}, up {duration(report['seconds'])}, {count} client{'s' * (count != 1)}"
    return Text.assemble(
        ("node ", "bold"), printable(report["socket"]), f"\n{facts}, augury {printable(report['version'])}"
    )


def _shelves(report: Report) -> Table:
    found = _table("shelf", "", "used", "of", "samples", "idle")
    for shelf in report["shelves"]:
        bar = ProgressBar(max(1, shelf["capacity"]), shelf["used"], width=20)
        sizes = format_size(shelf["used"]), format_size(shelf["capacity"])
        found.add_row(shelf["name"], bar, *sizes, f"{shelf['samples']:,}", f"{shelf['idle']:,}")
    return found


def _jobs(report: Report, titles: Numbers, numbers: Sequence[Numbers], console: Console) -> list[RenderableType]:
    """One table or, where the terminal is not wide enough, several below each other."""
    if not report["jobs"]:
        return [Text("no jobs: use it with augury.Loader(..., node='auto') or AUGURY_NODE=auto", "dim"), ""]
    levels = [what for shelf in report["shelves"] for what in (f"{shelf['name']} share", "used", "charged")]
    heads = [("recipe", *titles[0], "poisoned"), ("user", "clients", *titles[1]), levels]
    rows = [
        [
            (printable(job["recipe"]), *fares, f"{job['refused']:,}"),
            (_user(job), str(job["clients"]), *held),
            _levels(job),
        ]
        for job, (fares, held) in zip(report["jobs"], numbers, strict=True)
    ]
    names = [printable(job["name"]) for job in report["jobs"]]
    whole = _job_table(names, list(chain(*heads)), [list(chain(*row)) for row in rows])
    if whole.__rich_measure__(console, console.options.update(max_width=1000)).maximum <= console.width:
        return [whole, ""]
    parts = [_job_table(names, head, [row[at] for row in rows]) for at, head in enumerate(heads)]
    return [each for part in parts for each in (part, "")]


def _job_table(names: Sequence[str], titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = _table("job", *titles)
    for name, row in zip(names, rows, strict=True):
        made.add_row(Text(name), *map(Text, row))
    return made


def _levels(job: Report) -> list[str]:
    """What a job may use, uses, and (as what several hold is counted once) pays for of each level."""
    charged = job["charged"].values()
    return [format_size(each) for level in zip(job["shares"], job["used"], charged, strict=True) for each in level]


def _incidents(report: Report) -> Text:
    found = [f"{name.replace('_', ' ')} {count:,}" for name, count in report["counts"].items() if count]
    return Text(", ".join(found), "yellow") if found else Text("nothing refused, poisoned or damaged", "dim")


def _table(*titles: str) -> Table:
    """Empty: its first column is a name, the others are numbers."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, collapse_padding=True)
    for at, title in enumerate(titles):
        longest = _LONGEST.get(title)
        made.add_column(title, justify="right" if at else "left", no_wrap=True, overflow="ellipsis", max_width=longest)
    return made


def _user(job: Report) -> str:
    try:
        return pwd.getpwuid(job["user"]).pw_name
    except KeyError:
        return str(job["user"])
