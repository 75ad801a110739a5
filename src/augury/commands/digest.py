"""`augury digest`: a content digest of every sample, kept in the catalog; made once, renewed where files change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from augury.catalog import DIGEST, Catalog, default_place, is_saved
from augury.commands.index import check_writable, digests_line, find, saving
from augury.digests import THREADS, Digests, Hashed, hashed, known, written_since
from augury.errors import CatalogError, ConfigError, Stale, Unreadable
from augury.ids import Ids
from augury.journal import Journal
from augury.sources import Source, local_path
from augury.units import format_size

_NAMED = 20
"""So many samples that cannot be read are named; a store that is away would fill the screen."""
_OPENING = 64 << 10
"""What a file costs beside its bytes, in bytes: for the guess of how long it will take."""

Report: TypeAlias = Callable[[int, int], None]


def digest(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder of files, a folder of .tar shards, or one .tar.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the catalog is; else PATH/.augury, or PATH.augury for a .tar."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash again and name what differs from its digest; write nothing.")
    ] = False,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Samples read and hashed at once.")] = THREADS,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Hash every sample (BLAKE3) and keep the digests in the catalog.

    The catalog is brought up to date first, or made if there is none.

    Run again, it hashes what is new or has another size or modification time
    (of .tar shards, whole shards). Stopped midway, it goes on from there.

    Examples:

      augury digest /data/train                     (all samples, or the rest)

      augury digest /data/train --verify            (is every byte as it was?)

      augury digest /mnt/nfs/train --threads 32     (a store with long answers)

      augury digest /readonly --out ~/catalogs/it   (a catalog kept elsewhere)
    """
    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    data = local_path(path)
    place = out.expanduser() if out is not None else default_place(data)
    complete = _verify(data, place, threads, console) if verify else _renew(data, place, threads, console)
    if not complete:
        raise typer.Exit(1)


def _renew(data: Path, place: Path, threads: int, console: Console) -> bool:
    """Hash what has no digest yet; whether every sample has one now."""
    check_writable(data, place)
    with Journal(place) as journal:
        catalog = _up_to_date(data, journal, console)
        if journal.resumed:
            console.print(f"going on: {journal.resumed:,} samples were hashed before the last run was stopped")
        digests = np.zeros((len(catalog), DIGEST), np.uint8) if catalog.digests is None else catalog.digests
        missing = np.flatnonzero(~known(digests))
        failures, start = _Failures(catalog, console), time.monotonic()

        def keep(batch: Hashed) -> None:
            good = known(batch.digests)
            journal.add(batch.ids[good], batch.digests[good])
            digests[batch.ids] = batch.digests
            failures.add(batch.failures)

        try:
            _each(keep, "hashing", _opened(data, catalog), missing, threads, console, steady=True)
        except KeyboardInterrupt:
            done = known(digests).sum()
            console.print(f"{done:,} of {len(digests):,} samples are hashed: the same command goes on there")
            raise
        catalog = catalog.with_digests(digests)
        with saving():
            journal.save(catalog)
    failures.explain()
    if not console.quiet:
        _summarise(catalog, missing[known(digests[missing])], len(missing), time.monotonic() - start)
    return not failures.count


def _up_to_date(data: Path, journal: Journal, console: Console) -> Catalog:
    """The catalog of the data as it is now, saved, with the digests that are known."""
    options = Catalog.open(journal.place).options if is_saved(journal.place) else {}
    catalog = find(data, options.get("labels", "auto"), options.get("extensions", []), console)
    with saving():
        return journal.adopt(catalog)


def _each(
    take: Callable[[Hashed], None],
    what: str,
    source: Source,
    ids: Ids,
    threads: int,
    console: Console,
    steady: bool = False,
) -> None:
    """Hash these, hand over each batch, and show how far it is."""
    samples = size = 0
    hashing = closing(hashed(source, ids, threads, steady))
    with _progress(console, what, source.catalog, ids) as report, hashing as batches:
        for batch in batches:
            take(batch)
            samples, size = samples + len(batch.ids), size + batch.size
            report(samples, size)


def _opened(data: Path, catalog: Catalog) -> Source:
    from augury.sources.folder import FolderSource
    from augury.sources.packed import PackedSource

    return FolderSource(data, catalog) if catalog.kind == "folder" else PackedSource(data, catalog)


class _Failures:
    """Samples that cannot be read: the first of them named at once, all of them counted."""

    def __init__(self, catalog: Catalog, console: Console) -> None:
        self.count = self.stale = 0
        self._catalog = catalog
        self._console = Console(stderr=True, highlight=False, soft_wrap=True) if console.quiet else console

    def add(self, failures: list[Unreadable]) -> None:
        for failure in failures[: max(0, _NAMED - self.count)]:
            self._console.print(escape(_told(failure, self._catalog)))
        self.count += len(failures)
        self.stale += sum(isinstance(failure, Stale) for failure in failures)

    def explain(self) -> None:
        """How many there are, and what to do."""
        if not self.count:
            return
        advice = ["let nobody write to the data"] if self.stale else []
        advice += ["make them readable, or take them away"] if self.count > self.stale else []
        self._console.print(
            escape(
                f"{_samples(self.count)} could not be hashed: {', '.join(advice)}, and run again: "
                f"{self._catalog.digest_command}"
            )
        )


def _samples(count: int) -> str:
    return f"{count:,} sample" + ("" if count == 1 else "s")


def _told(failure: Unreadable, catalog: Catalog) -> str:
    """Without the advice to index again, which is for those who read: here it is part of what comes next."""
    return f"{failure.location}: {failure.reason.removesuffix(f'; {catalog.refresh_hint}')}"


# -- hashing again -----------------------------------------------------------------------------------------


def _verify(data: Path, place: Path, threads: int, console: Console) -> bool:
    """Compare all samples with their digests; whether every sample has one and is what it says."""
    if not data.exists():
        raise ConfigError(f"{data} does not exist")
    catalog = Catalog.open(place)
    if catalog.digests is None:
        raise CatalogError(f"the catalog at {place} has no digests: make them with: {catalog.digest_command}")
    have = known(catalog.digests)
    wrong = _differing(_opened(data, catalog), np.flatnonzero(have), catalog.digests, threads, console)
    missing = len(catalog) - int(have.sum())
    loud = Console(stderr=True, highlight=False, soft_wrap=True)
    if wrong:
        loud.print(
            escape(
                f"{wrong:,} of {len(catalog):,} samples not as their digests say: bring them back from a copy, or, if "
                f"they were changed on purpose, renew the digests with: {catalog.digest_command}"
            )
        )
    if missing:
        loud.print(escape(f"{_samples(missing)} without a digest: make them with: {catalog.digest_command}"))
    if not wrong and not missing:
        console.print(f"{len(catalog):,} samples are what their digests say")
    return not wrong and not missing


def _differing(source: Source, ids: Ids, digests: Digests, threads: int, console: Console) -> int:
    """Print each sample that is not what its digest says, or cannot be read; how many they are."""
    wrong, catalog = 0, source.catalog

    def compare(batch: Hashed) -> None:
        nonlocal wrong
        for failure in batch.failures:
            _tell(_told(failure, catalog))
        differ = batch.ids[known(batch.digests) & (batch.digests != digests[batch.ids]).any(axis=1)]
        for id, written in zip(differ.tolist(), written_since(catalog, differ).tolist(), strict=True):
            when = "it was written since" if written else "though its modification time is the same"
            _tell(f"{catalog.location(id)}: differs from its digest, {when}")
        wrong += len(batch.failures) + len(differ)

    _each(compare, "verifying", source, ids, threads, console)
    return wrong


def _tell(line: str) -> None:
    """On stdout: it is the result. File names need not be UTF-8."""
    print(line.encode("utf-8", "backslashreplace").decode())


# -- showing how far it is ---------------------------------------------------------------------------------


@contextmanager
def _progress(console: Console, what: str, catalog: Catalog, ids: Ids) -> Iterator[Report]:
    """A bar, or a line now and then where nobody watches; called with how many samples and bytes are done."""
    total = len(ids), int(catalog.sizes[ids].sum())
    if not console.is_terminal:
        yield _line_now_and_then(console, what, *total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[samples]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=console.quiet, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        # What is printed meanwhile goes above the bar, but to a pipe if stdout is one.
        task = bar.add_task(what, total=_work(*total), samples="")

        def report(samples: int, size: int) -> None:
            rates = _rates(samples, size, bar.tasks[0].elapsed or 0.0)
            bar.update(task, completed=_work(samples, size), samples=f"{samples:,} of {len(ids):,}, {rates}")

        yield report


def _line_now_and_then(console: Console, what: str, samples: int, size: int, every: float = 10.0) -> Report:
    start = last = time.monotonic()

    def report(done: int, bytes_done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            left = (now - start) * (_work(samples, size) / _work(done, bytes_done) - 1)
            rates = _rates(done, bytes_done, now - start)
            console.print(f"{what}: {done:,} of {samples:,}, {rates}, {timedelta(seconds=round(left))} left")

    return report


def _work(samples: int, size: int) -> int:
    return size + samples * _OPENING


def _rates(samples: int, size: int, seconds: float) -> str:
    seconds = max(seconds, 1e-3)
    return f"{samples / seconds:,.0f} samples/s, {format_size(size / seconds)}/s"


def _summarise(catalog: Catalog, ids: Ids, tried: int, seconds: float) -> None:
    size = int(catalog.sizes[ids].sum())
    lines = {
        "samples": f"{len(catalog):,}",
        "hashed": f"{len(ids):,}" + (f" in {seconds:.1f} s: {_rates(len(ids), size, seconds)}" if len(ids) else ""),
        "kept": f"{len(catalog) - tried:,}",
        "digests": digests_line(catalog),
        "catalog": str(catalog.path),
    }
    console = Console(soft_wrap=True, highlight=False)
    for name, value in lines.items():
        console.print(f"[bold]{name:<8}[/bold] {escape(value)}")
