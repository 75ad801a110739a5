"""`augury index`: find all samples once, so that every later start is instant."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from augury.catalog import Catalog, default_place
from augury.catalog import Progress as Report
from augury.digests import known
from augury.errors import CatalogError, ConfigError
from augury.journal import Journal
from augury.sources import is_packed, local_path, normal_extensions


def index(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder of files, a folder of .tar shards, or one .tar.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write the catalog; else PATH/.augury, or PATH.augury for a .tar."),
    ] = None,
    labels: Annotated[
        str,
        typer.Option(
            metavar="auto|folders|none",
            help="auto: from class folders or .cls files, if any; folders: insist on class folders.",
        ),
    ] = "auto",
    extensions: Annotated[
        str | None, typer.Option(metavar=".A,.B", help="Only files with these endings, such as .jpg,.png")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the saved catalog with the files; write nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Find all samples below PATH and save where they are: later starts are then instant.

    A loader opened on PATH finds the catalog by itself. Run it again after the data has changed.

    The digests of samples that have not changed are kept (augury digest).

    Examples:

      augury index /data/train                     (class folders: cat/1.jpg)

      augury index /data/train --extensions .jpg   (leave other files out)

      augury index /data/shards                    (.tar, as for WebDataset)

      augury index /readonly --out ~/catalogs/it   (keep the catalog elsewhere)

      augury index /data/train --check             (are the files as they were?)
    """
    console = Console(stderr=True, quiet=quiet)
    data = local_path(path)
    place = out.expanduser() if out is not None else default_place(data)
    if check:
        _check(data, place, console)
        return
    check_writable(data, place)
    catalog = find(data, labels, normal_extensions(extensions), console)
    with saving(), Journal(place) as journal:
        catalog = journal.adopt(catalog)
    if not quiet:
        _summarise(catalog)


def find(data: Path, labels: str, extensions: list[str], console: Console) -> Catalog:
    """Scan a path, with a bar."""
    with _progress(console, "indexing") as report:
        return _finder(data)(data, labels=labels, extensions=extensions, progress=report)


def _finder(data: Path) -> Callable[..., Catalog]:
    from augury.sources.folder import index_folder
    from augury.sources.tarindex import index_packed

    return index_packed if is_packed(data) else index_folder


def check_writable(data: Path, place: Path) -> None:
    """Before the scan, which may take an hour, rather than after it."""
    if not data.exists():
        raise ConfigError(f"{data} does not exist")
    nearest = place.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ConfigError(f"cannot write to {place}: choose another place with --out DIR")


@contextmanager
def saving() -> Iterator[None]:
    """Where a catalog cannot be written, say what to do."""
    try:
        yield
    except CatalogError as error:
        raise CatalogError(f"{error}; choose another place with --out DIR") from error


def _added(catalog: Catalog, data: Path, report: Report) -> list[str]:
    """Samples that are there and not in the catalog, the first of them by name."""
    options = catalog.options
    now = _finder(data)(data, labels=options["labels"], extensions=options["extensions"], progress=report)
    known = set(map(catalog.location, range(len(catalog))))
    fresh = (now.location(id) for id in range(len(now)))
    return [f"{location}: not in the catalog" for location in islice((at for at in fresh if at not in known), 10)]


def _check(data: Path, place: Path, console: Console) -> None:
    catalog = Catalog.open(place)
    with _progress(console, "checking") as report:
        differences = catalog.check(report) or _added(catalog, data, report)
    if differences:
        first = "\n".join(f"  {difference}" for difference in differences)
        complaint = f"the data is not what the catalog says:\n{first}\nrefresh it with: {catalog.refresh_command}"
        Console(stderr=True, soft_wrap=True, highlight=False).print(escape(complaint))
        raise typer.Exit(1)
    console.print(f"{len(catalog):,} samples are as the catalog says", highlight=False)


@contextmanager
def _progress(console: Console, what: str) -> Iterator[Report]:
    if not console.is_terminal:
        yield _line_now_and_then(console, what)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bar:
        task = bar.add_task(what, total=None, rate="")

        def report(done: int, total: int | None) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, completed=done, total=total, rate=f"{done / elapsed:,.0f}/s" if elapsed else "")

        yield report


def _line_now_and_then(console: Console, what: str, every: float = 10.0) -> Report:
    """For log files, where a bar that redraws itself would be noise, and silence would look like a hang."""
    start = last = time.monotonic()

    def report(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            console.print(f"{what}: {done:,} done, {done / (now - start):,.0f}/s", highlight=False)

    return report


def digests_line(catalog: Catalog) -> str:
    """How many samples have a digest, and what to do for the others."""
    assert catalog.digests is not None
    count = int(known(catalog.digests).sum())
    if count == len(catalog):
        return f"{count:,}"
    return f"{count:,} of {len(catalog):,}; the others with: {catalog.digest_command}"


def _summarise(catalog: Catalog) -> None:
    low, middle, high = catalog.sizes.min(), np.median(catalog.sizes), catalog.sizes.max()
    if catalog.labels is None:
        labels = "none"
    elif catalog.classes:
        labels = f"{len(catalog.classes):,} classes"
    else:
        labels = f"{len(np.unique(catalog.labels)):,} different"
    lines = {
        "samples": f"{len(catalog):,}",
        "labels": labels,
        "bytes": f"{catalog.total_bytes:,}",
        "sizes": f"{low:,} least, {middle:,.0f} median, {high:,} most",
        "catalog": str(catalog.path),
    }
    if catalog.digests is not None:
        lines["digests"] = digests_line(catalog)
    console = Console(soft_wrap=True, highlight=False)
    for name, value in lines.items():
        console.print(f"[bold]{name:<8}[/bold] {escape(value)}")
