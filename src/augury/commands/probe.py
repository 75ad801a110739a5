"""`augury probe`: how fast are this machine's memory, its disk and the source? A table, and a file for others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from augury.errors import ConfigError
from augury.probe import Disk, Findings
from augury.probe import Progress as Report
from augury.probe import probe as measure
from augury.sources import Source, open_source
from augury.units import Size, parse_size


def probe(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="The dataset: measures the store that it is on.")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Measure memory; so much of it is for the cache: 8GB.")
    ] = None,
    disk: Annotated[
        str | None,
        typer.Option(metavar="DIR:SIZE", help="Measure the disk of this directory, as for Loader: /nvme/augury:200GB."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what was found there, as TOML.")] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="P,Q,...",
            help="Numbers of threads. (Default: 1,2,4,8 and the number of processors; for DATA up to 32.)",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="For each figure, that is each number of threads at each place.")
    ] = 2.0,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of samples in memory and on disk. (Default: as in DATA, else 100kB.)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the rates of every round.")] = False,
) -> None:
    """Measure memory, a disk and a dataset's store, used as the loader uses them.

    Memory and disk are written and read through the cache's own tiers. The
    disk's directory must be new or Augury's own, and is left as it was. DATA
    is only read, each sample once. Ctrl-C stops and cleans up.

    `threads` in the table is the smallest number of threads that reaches
    90 % of the best rate.

    Examples:

      augury probe /data --ram 8GB --disk /nvme/augury:200GB --out levels.toml

      augury probe /data                         (how many readers pay off?)

      augury probe --disk /nvme/augury:200GB --size 3kB     (small samples)

      augury probe --ram 8GB --threads 1,2,4,8,16 --seconds 0.5 --json
    """
    if data is None and ram is None and disk is None:
        raise ConfigError("nothing to measure: give a dataset, --ram 8GB or --disk /nvme/augury:200GB (or --help)")
    counts = None if threads is None else _counts(threads)
    limits = (None if ram is None else _size(ram)), (None if disk is None else _disk(disk))
    sample = None if size is None else parse_size(size, "--size")
    if out is not None:
        _check_writable(out)
    source = None if data is None else open_source(data)
    try:
        with _progress() as report:
            found = measure(source, *limits, threads=counts, seconds=seconds, size=sample, progress=report)
    finally:
        if source is not None:
            source.close()
    if out is not None:
        found.storage.save(out)
    if as_json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        _print(found, source, out)


def _counts(text: str) -> list[int]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or not all(re.fullmatch("[1-9][0-9]{0,3}", item) for item in items):
        raise ConfigError(f"--threads takes numbers of threads such as 1,2,4,8, not {text!r}")
    return [int(item) for item in items]


def _size(text: str) -> Size:
    """As users write it in Python, too: 0.2 is a fraction of the dataset."""
    return float(text) if re.fullmatch(r"[01]?\.[0-9]+", text.strip()) else text


def _disk(text: str) -> Disk:
    directory, colon, size = text.rpartition(":")
    if not colon or not directory:
        raise ConfigError(f"--disk {text}: write a directory and a limit, like /nvme/augury:200GB")
    return Disk(Path(directory).expanduser(), _size(size))


def _check_writable(path: Path) -> None:
    """Before the work rather than after it."""
    if path.is_dir():
        raise ConfigError(f"--out {path} is a directory: name a file, such as {path / 'levels.toml'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigError(f"--out {path} cannot be written: name another file")


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on stderr, where somebody may be watching; never between the lines of an output."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _as_json(found: Findings) -> dict[str, Any]:
    return {
        "levels": [
            {
                "name": level.name,
                "capacity": level.capacity,
                "threads": level.threads,
                **({"path": level.path} if level.path is not None else {}),
            }
            for level in found.storage.levels
        ],
        "measured": [
            {
                "place": curve.place,
                "action": curve.action,
                "threads": curve.enough,
                "throughput": curve.throughput.measured,
                "rounds": {count: [round(rate, 3) for rate in rates] for count, rates in curve.rates.items()},
            }
            for curve in found.curves
        ],
        "notes": found.notes,
    }


def _print(found: Findings, source: Source | None, out: Path | None) -> None:
    console = Console(soft_wrap=True, highlight=False)
    Console().print(_table(found))
    for note in found.notes:
        console.print(f"[bold]{note.split(':')[0]:<7}[/bold]{escape(note.partition(': ')[2])}")
    if source is not None:
        readers = next(curve.enough for curve in found.curves if curve.place == "source")
        console.print(f"Loader(..., readers={readers}) is enough for this source, if nobody else reads from it.")
    if out is not None:
        console.print(f"written to {escape(str(out))}")


def _table(found: Findings) -> Table:
    counts = sorted({count for curve in found.curves for count in curve.rates})
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    table.title = "MB/s by number of threads, medians"
    for name in ("place", "action"):
        table.add_column(name, no_wrap=True)
    for count in counts:
        table.add_column(str(count), justify="right", no_wrap=True)
    table.add_column("threads", justify="right")
    for curve in found.curves:
        measured = curve.throughput.measured
        rates = [f"{measured[count]:,.4g}" if count in measured else "" for count in counts]
        table.add_row(curve.place, curve.action, *rates, str(curve.enough) if curve.action == "read" else "")
    return table
