"""Record the loss field of CIFAR-10, with the code of `augury record`: what importance recipes are replayed over.

    python bench/record_cifar.py --data DIR [--out FILE] [--epochs 24] [--force]

DIR holds the packed files that _cifar.py describes. Some 20 s per epoch on one core. The result is kept beside the
benchmarks (bench/data/cifar10-losses.npz), so this needs to be run only to make it anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import _cifar
from _common import arguments, report, without_data
from augury.commands.record import BATCH, WIDTH, check_out, check_torch, run
from augury.errors import ConfigError
from augury.pictures import Pictures
from augury.recording import Plan, Recording
from augury.sim.fields import Recorded

OUT = Path(__file__).parent / "data" / "cifar10-losses.npz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def pictures(x: _cifar.Bytes, y: _cifar.Bytes, samples: int | None) -> Pictures:
    return Pictures(x[:samples], y[:samples].astype(np.int64), CLASSES)


def figures(field: Recorded) -> dict[str, Any]:
    """How the losses look: they should fall while their spread, beside their mean, grows."""
    table = field.table.astype(np.float64)
    assert field.accuracy is not None
    return {
        "samples": field.samples,
        "epochs": field.epochs,
        "mean loss": [round(float(row.mean()), 4) for row in table],
        "standard deviation / mean": [round(float(row.std() / row.mean()), 3) for row in table],
        "test accuracy": [round(float(share), 4) for share in field.accuracy],
    }


def main() -> None:
    options = arguments(
        __doc__ or "",
        data={"type": Path, "metavar": "DIR", "help": "where the packed CIFAR-10 files are"},
        out={"type": Path, "metavar": "FILE", "help": f"the field to write (default: {OUT.parent.name}/{OUT.name})"},
        epochs={"type": int, "default": 24, "metavar": "N"},
        seed={"type": int, "default": 0},
        force={"action": "store_true", "help": "replace FILE if it exists"},
    )
    if without_data(options):
        return
    with tempfile.TemporaryDirectory() as aside:
        tried = Path(aside, "field.npz")
        out = options.out or (tried if options.quick else OUT)
        out.parent.mkdir(parents=True, exist_ok=True)
        check_out(out, options.force)
        check_torch()
        cifar = _cifar.load(options.data)
        samples, epochs = (2_000, 2) if options.quick else (None, options.epochs)
        train, test = pictures(cifar.x_train, cifar.y_train, samples), pictures(cifar.x_test, cifar.y_test, samples)
        recording = Recording("CIFAR-10", train, test, Plan(epochs, BATCH, options.seed, WIDTH))
        run(recording, out, Console(stderr=True, highlight=False, soft_wrap=True))
        report(figures(recording.field()) | {"bytes": out.stat().st_size}, options.json)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
