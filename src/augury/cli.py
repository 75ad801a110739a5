"""The command line: which commands there are, and how errors are told. Each command lives in commands/.

A command's module is imported when the command is run, so that `augury --help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from augury import __version__
from augury.errors import AuguryError

COMMANDS = {
    "demo": "A slow store, a small cache, real training: recipes side by side.",
    "digest": "Hash every sample, so that equal ones are known by their content.",
    "index": "Find all samples below a path once, so that later starts are instant.",
    "probe": "How fast are memory, disk and the store? By number of threads, into a file.",
    "record": "Train once and keep every sample's losses, to replay importance recipes.",
    "replay": "What would a cache hit? Recipes over shuffled epochs or a recorded run.",
    "serve": "Share one cache between all jobs and users of this machine (its node).",
    "simulate": "How long would training take? Loading strategies on a simulated cluster.",
    "stats": "What has this machine's node done so far? As tables or JSON.",
    "stop": "End this machine's node; what it has on disk is kept.",
    "top": "Watch this machine's node: jobs, hits, bytes by holder, stall, shares.",
}


class _Lazy(TyperGroup):
    """Knows its commands by name; the one that is run takes the place of its stub."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = _load(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="augury",
    cls=_Lazy,
    help="A training-data cache and loader: the more you know, the less cache you need.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _stub() -> None:
    """Stands in the list of commands; never run."""


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(_stub)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"augury {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _load(name: str) -> Any:
    module = importlib.import_module(f"augury.commands.{name}")
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(module, name))
    return typer.main.get_command(alone)


def main() -> None:
    """Run a command; an error that was raised on purpose is one line on stderr."""
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(prog_name="augury", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except AuguryError as error:
        return _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 130)
    except BrokenPipeError:
        # Whoever read our output has gone, which is no mistake (`augury replay --json | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage(error)


def _usage(error: Any) -> int:
    """A command line that cannot be understood (all such errors of typer can format themselves)."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return 2
    hint = f" (try: {context.command_path} --help)" if context is not None else ""
    return _fail(error.format_message().rstrip(".") + hint, 2)


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
