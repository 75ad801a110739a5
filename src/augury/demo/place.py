"""The demo's directory: who owns it, which files are in it, and when the pictures must be drawn anew.

Only files that a demo wrote are ever removed or overwritten: their names follow from the marker that it left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from augury.demo.dataset import CLASSES, VERSION, draw, encode_ppm
from augury.errors import ConfigError

MARKER = "made-by-augury-demo.json"


@dataclass(frozen=True)
class Spec:
    """Which pictures: equal specs give equal files."""

    train: int
    test: int
    seed: int
    version: int = VERSION

    def names(self) -> Iterator[str]:
        """Every file, below the data directory, in the order of drawing."""
        for split, samples in (("train", self.train), ("test", self.test)):
            for number in range(samples):
                yield f"{split}/{CLASSES[number % len(CLASSES)]}/{number:05d}.ppm"


class Place:
    """A directory that belongs to the demo."""

    def __init__(self, root: Path) -> None:
        self.root, self.data = root, root / "data"
        self.train, self.test = self.data / "train", self.data / "test"
        self.marker, self.figures, self.plot = root / MARKER, root / "demo.json", root / "demo.png"

    def prepare(self, spec: Spec) -> bool:
        """Let the pictures of `spec` be there; whether they were there already."""
        try:
            earlier = self._claim()
            self._refuse_foreign([each for each in (earlier, spec) if each is not None])
            if earlier == spec and self._is_whole(spec):
                return True
            if earlier is not None:
                self._remove(earlier)
            self._write(spec)
            return False
        except OSError as error:
            raise ConfigError(f"cannot write to {self.root}: {error.strerror or error}; {_ELSEWHERE}") from error

    def save(self, path: Path, text: str) -> None:
        """Replace one of our files, whole or not at all."""
        beside = path.with_name(path.name + ".part")
        beside.write_text(text)
        os.replace(beside, path)

    def _claim(self) -> Spec | None:
        """Make sure that the directory is ours; what an earlier demo drew there, if one did."""
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"{self.root} is a file: {_ELSEWHERE}")
        self.root.mkdir(parents=True, exist_ok=True)
        earlier = _read_marker(self.marker)
        if earlier is None and any(self.root.iterdir()):
            raise ConfigError(f"{self.root} holds files and is not from an earlier demo: {_ELSEWHERE}")
        return earlier

    def _refuse_foreign(self, specs: list[Spec]) -> None:
        """Files of others among the pictures would be trained on. Hidden ones (a saved catalog) do no harm."""
        ours = {name for spec in specs for name in spec.names()}
        for directory, below, files in os.walk(self.data):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in files:
                path = Path(directory, name)
                if not name.startswith(".") and path.relative_to(self.data).as_posix() not in ours:
                    raise ConfigError(f"{path} was not written by the demo: move it away, or {_ELSEWHERE}")

    def _is_whole(self, spec: Spec) -> bool:
        complete = json.loads(self.marker.read_text())["complete"]
        return bool(complete) and all((self.data / name).is_file() for name in spec.names())

    def _remove(self, spec: Spec) -> None:
        for name in spec.names():
            (self.data / name).unlink(missing_ok=True)

    def _write(self, spec: Spec) -> None:
        """The marker comes first: if this is interrupted, the next demo knows the files for its own."""
        self._mark(spec, complete=False)
        for split, samples in ((self.train, spec.train), (self.test, spec.test)):
            for name in CLASSES[:samples]:
                (split / name).mkdir(parents=True, exist_ok=True)
        pictures = (
            picture
            for split, samples in enumerate((spec.train, spec.test))
            for chunk in draw(samples, spec.seed, split)
            for picture in chunk
        )
        for name, picture in zip(spec.names(), pictures, strict=True):
            (self.data / name).write_bytes(encode_ppm(picture))
        self._mark(spec, complete=True)

    def _mark(self, spec: Spec, complete: bool) -> None:
        self.save(self.marker, json.dumps({"complete": complete, "dataset": asdict(spec)}, indent=2) + "\n")


_ELSEWHERE = "choose another place with --out DIR"


def _read_marker(path: Path) -> Spec | None:
    try:
        marker: Any = json.loads(path.read_text())
        numbers = {name: int(number) for name, number in marker["dataset"].items()}
        return Spec(**numbers) if isinstance(marker["complete"], bool) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
