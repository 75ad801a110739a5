"""`augury simulate`: how long would training take? Loading strategies on a simulated cluster."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from augury.catalog import Catalog, is_saved
from augury.commands.shared import MARKS, check_plot, items, progress, save_plot
from augury.errors import ConfigError, UnknownName
from augury.sim import nodes, scenario
from augury.sim.outcome import Outcome, Reads
from augury.sim.strategies import PUBLISHED, STRATEGIES
from augury.sources import open_source
from augury.storage import Storage
from augury.units import parse_size

MODELS = ("clean", "paper")
MB = 1_000_000


class Case(NamedTuple):
    """One run: which policy under which parameters."""

    policy: str
    parameters: Mapping[str, Any]
    swept: dict[str, str]
    """What of them is varied, as it was written."""


class Found(NamedTuple):
    """What a case came to; nothing where the policy does not support it."""

    case: Case
    outcome: Outcome | None


def simulate(
    file: Annotated[Path | None, typer.Argument(help="A scenario as TOML.", metavar="SCENARIO.toml")] = None,
    shipped: Annotated[
        int | None, typer.Option("--scenario", metavar="1..4", help="One of the four scenarios of the HDMLP thesis.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help=f"Strategies to compare, of {', '.join(STRATEGIES)}. (Default: the first ten.)"
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="|".join(MODELS), help="Events in the order of time, or as the published figures were made."
        ),
    ] = "clean",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a parameter, such as d.1=20480.")
    ] = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=V1,V2,...", help="Vary a parameter: d.1=0,10240 or N=1,2,4,8. At most two."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Take the samples' sizes from this dataset or its catalog.")
    ] = None,
    levels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take p, d, r, w and t from a file made by `augury probe`.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the shuffles, and of sizes that are drawn.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes. (Default: one per processor.)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per policy.")] = False,
    series: Annotated[
        bool, typer.Option("--series", help="With --json: also when each batch ended, and its stall.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw run time over batches, or over what is swept (.png, .svg, .pdf)."),
    ] = None,
) -> None:
    """How long would training take? Loading strategies on a simulated cluster.

    A scenario says how many nodes there are, how fast they compute, what
    storage they have and how fast it is, and how large the samples are. Write
    one for your cluster, from a copy of a shipped one, before you buy or book.

    Examples:

      augury simulate --scenario 3

      augury simulate --scenario 1 --model paper --seed 42    (as published)

      augury simulate --scenario 3 --policy hdmlp --sweep d.1=0,20480,40960

      augury simulate --scenario 3 --policy hdmlp,naive --sweep N=1,2,4

      augury simulate my.toml --levels levels.toml --data /data/train
    """
    if series and not as_json:
        raise ConfigError("--series is part of the JSON: add --json")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: at least one")
    sizes = None if data is None else _sizes(data)
    cases = _cases(file, shipped, policy, model, settings or [], sweeps or [], levels, sizes)
    if plot is not None:
        check_plot(plot)
        _check_axis(cases)
    for case in cases:
        if case.policy == cases[0].policy:  # before hours of work: can all of them be built?
            scenario.build(case.parameters, seed, sizes=sizes)
    found = _run_all(cases, partial(_run, seed=seed, paper=model == "paper", sizes=sizes), jobs)
    if plot is not None:
        _plot(found, plot)
    if as_json:
        print(json.dumps([_as_dict(each, series) for each in found], indent=2))
    else:
        console, table = Console(), _table(found)
        needed = console.measure(table, options=console.options.update_width(1000)).maximum
        console.width = max(console.width, needed)  # rather a long line than half a number
        console.print(table)


def _cases(
    file: Path | None,
    shipped: int | None,
    policy: str | None,
    model: str,
    settings: list[str],
    sweeps: list[str],
    levels: Path | None,
    sizes: NDArray[np.float64] | None,
) -> list[Case]:
    if (file is None) == (shipped is None):
        raise ConfigError("give one scenario: a TOML file, or --scenario 1 to 4")
    if model not in MODELS:
        raise UnknownName("model", model, MODELS)
    names = list(PUBLISHED) if policy is None else items(policy, "--policy")
    for name in names:
        if name not in STRATEGIES:
            raise UnknownName("policy", name, STRATEGIES)
        if name == "hdmlp-cleanup" and model == "paper":
            raise ConfigError(f"{name} has no published figures: simulate it with the default model")
    parameters = scenario.read(str(shipped) if file is None else file)
    if levels is not None:
        parameters = _with_storage(parameters, Storage.load(levels), levels, sizes)
    for setting in settings:
        parameters = scenario.override(parameters, setting)
    if len(sweeps) > 2:
        raise ConfigError("--sweep varies at most two parameters")
    varying = [_values(sweep) for sweep in sweeps]
    if len({values[0][0] for values in varying}) < len(varying):
        raise ConfigError(f"--sweep varies {varying[0][0][0]} twice: list all its values in one")
    cases = []
    for chosen in itertools.product(*varying):
        varied = parameters
        for key, value in chosen:
            varied = scenario.override(varied, f"{key}={value}")
        cases += [Case(name, varied, dict(chosen)) for name in names]
    return cases


def _with_storage(
    parameters: Mapping[str, Any], storage: Storage, file: Path, sizes: NDArray[np.float64] | None
) -> dict[str, Any]:
    """The parameters with the storage classes of a machine that was probed behind their staging buffer."""
    tables = {
        name: {at: value for at, value in scenario.table(parameters, name).items() if at == "0" or not storage.levels}
        for name in "pdrw"
    }
    whole = None if sizes is None else int(sizes.sum() * MB)
    for at, level in enumerate(storage.levels, start=1):
        if whole is None and isinstance(level.capacity, float):
            raise ConfigError(
                f"{file}: {level.capacity} as the capacity of {level.name} is a part of --data: name that"
            )
        if level.read is None:
            raise ConfigError(f"{file} does not say how fast {level.name} is read: measure it with `augury probe`")
        tables["p"][str(at)] = level.threads
        tables["d"][str(at)] = parse_size(level.capacity, f"the capacity of {level.name}", whole) / MB
        tables["r"][str(at)] = {str(count): value for count, value in level.read.measured.items()}
        if level.write is not None:
            tables["w"][str(at)] = {str(count): value for count, value in level.write.measured.items()}
    if storage.source is not None:
        tables["t"] = {str(count): value for count, value in storage.source.measured.items()}
    return dict(parameters) | tables


def _values(sweep: str) -> list[tuple[str, str]]:
    key, equals, text = sweep.partition("=")
    if not equals:
        raise ConfigError(f"--sweep {sweep}: write a parameter and its values, like d.1=0,10240,20480")
    return [(key.strip(), value) for value in items(text, "--sweep")]


def _sizes(data: str) -> NDArray[np.float64]:
    """Of a saved catalog, or of whatever a loader would open."""
    if is_saved(data):
        return Catalog.open(data).sizes / MB
    source = open_source(data)
    try:
        return source.catalog.sizes / MB
    finally:
        source.close()


def _run(case: Case, seed: int, paper: bool, sizes: NDArray[np.float64] | None, progress: Any = None) -> Outcome | None:
    return nodes.run(case.policy, scenario.build(case.parameters, seed, paper, sizes), seed, progress)


def _run_into(file: Path, run: partial[Outcome | None], case: Case) -> bool:
    """In a process of the pool: the outcome goes into a file, and only whether there is one through the pool's pipe. A
    process that is ended while it writes more than the pipe holds would leave the pool waiting for the rest."""
    outcome = run(case)
    if outcome is not None:
        np.savez(file, ends=outcome.ends, stalls=outcome.stalls, reads=np.array(astuple(outcome.reads)))
    return outcome is not None


def _read(file: Path) -> Outcome:
    with np.load(file, allow_pickle=False) as saved:
        return Outcome(saved["ends"], saved["stalls"], Reads(*saved["reads"].tolist()))


def _run_all(cases: list[Case], run: partial[Outcome | None], jobs: int | None) -> list[Found]:
    """All cases, several at a time; a single one with a bar of its own."""
    jobs = min(jobs or os.cpu_count() or 1, len(cases))
    with progress(len(cases)) as advance:
        if jobs == 1:
            return [Found(case, run(case, progress=_Share(advance, case.policy))) for case in cases]
        outcomes: dict[int, Outcome | None] = {}
        # A fresh interpreter per process: nothing of this one's threads is copied.
        with (
            TemporaryDirectory(prefix="augury-simulate-") as place,
            ProcessPoolExecutor(jobs, get_context("spawn"), _end_with_parent) as pool,
        ):
            files = [Path(place) / f"{number}.npz" for number in range(len(cases))]
            try:
                with _without_interrupts():
                    futures = {pool.submit(_run_into, files[at], run, case): at for at, case in enumerate(cases)}
                for future in as_completed(futures):
                    number = futures[future]
                    outcomes[number] = _read(files[number]) if future.result() else None
                    advance(cases[number].policy, 1)
            except BrokenProcessPool:
                raise ConfigError("a process was killed, perhaps because memory ran out: try --jobs 1") from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():
                    child.terminate()
                raise
    return [Found(case, outcomes[number]) for number, case in enumerate(cases)]


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started within never see Ctrl-C; this one sees it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a process of the pool: nobody waits for it once the program that started it has been killed."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


class _Share:
    """One case's share of the bar: told after every batch, shown after every hundredth."""

    def __init__(self, advance: Any, name: str) -> None:
        self._advance, self._name, self._shown = advance, name, 0.0

    def __call__(self, done: int, of: int) -> None:
        if done == of or done / of - self._shown > 0.01:
            self._advance(self._name, done / of - self._shown)
            self._shown = done / of


def _as_dict(found: Found, series: bool) -> dict[str, Any]:
    nothing = {"runtime": None, "stall": None, "reads": None}
    result = nothing if found.outcome is None else found.outcome.as_dict(series)
    return {"policy": found.case.policy, **({"set": found.case.swept} if found.case.swept else {}), **result}


def _table(found: list[Found]) -> Table:
    bounds = {_key(each): each.outcome.runtime for each in found if each.case.policy == "lower-bound" and each.outcome}
    bounds = {key: bound for key, bound in bounds.items() if bound > 0}  # files may all be empty
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        caption="seconds of the whole run; stall: lost to waiting for data; reads by who held the sample",
        pad_edge=False,
    )
    swept = list(found[0].case.swept)
    for name in ("policy", *swept):
        table.add_column(name, no_wrap=True)
    for name in ("runtime", *(["x bound"] if bounds else []), "stall", "source", "local", "remote"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        cells = [each.case.policy, *(each.case.swept[name] for name in swept)]
        outcome = each.outcome
        if outcome is None:
            table.add_row(*cells, "N/A")
            continue
        cells.append(f"{outcome.runtime:,.2f}")
        if bounds:
            cells.append(f"{outcome.runtime / bounds[_key(each)]:.3f}" if _key(each) in bounds else "")
        reads = outcome.reads
        table.add_row(*cells, f"{outcome.stall:,.2f}", f"{reads.source:,}", f"{reads.local:,}", f"{reads.remote:,}")
    return table


def _key(found: Found) -> tuple[tuple[str, str], ...]:
    return tuple(found.case.swept.items())


def _plot(found: list[Found], path: Path) -> None:
    """Run time over batches as in Figures 5.4 to 5.7, or over what is swept as in Figure 5.8."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    if found[0].case.swept:
        _draw_sweep(axes, found)
    else:
        _draw_batches(axes, found)
    save_plot(figure, path)


def _check_axis(cases: list[Case]) -> None:
    for case in cases:
        for name, value in list(case.swept.items())[:1]:
            try:
                float(value)
            except ValueError:
                raise ConfigError(f"--plot needs numbers on its axis, and {name}={value} is none") from None


def _draw_batches(axes: Any, found: list[Found]) -> None:
    for number, each in enumerate(found):
        if each.outcome is not None:
            ends = each.outcome.ends
            axes.plot(
                np.arange(1, len(ends) + 1), ends, label=each.case.policy, linestyle=["-", "--", "-.", ":"][number % 4]
            )
    axes.set(xlabel="batch", ylabel="seconds since the start", xlim=(0, None), ylim=(0, None))


def _draw_sweep(axes: Any, found: list[Found]) -> None:
    """One curve per policy and value of the second parameter."""
    first, *second = found[0].case.swept
    curves: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        if each.outcome is None:
            continue
        label = ", ".join([each.case.policy, *(f"{name}={each.case.swept[name]}" for name in second)])
        curves.setdefault(label, []).append((float(each.case.swept[first]), each.outcome.runtime))
    for number, (label, points) in enumerate(curves.items()):
        axes.plot(*zip(*sorted(points), strict=True), label=label, marker=MARKS[number % len(MARKS)], fillstyle="none")
    axes.set(xlabel=first, ylabel="run time (s)")
    if first == "N":  # strong scaling is a straight line on these
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    else:
        axes.set_ylim(0, None)
