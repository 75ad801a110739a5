"""Steps in a row: numbers drawn for a whole batch, decoding joined with the crop that follows, and where to split.

`Compose` is what users hand to the loader. It follows the protocol `Seeded`, by which the loader tells any transform
that wants to know which samples of which epoch it is given. What a single step does is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids, as_ids
from augury.sources import Form
from augury.transforms.chance import Chance, uniform
from augury.transforms.images import as_array, decoded_part, write
from augury.transforms.steps import Decode, Normalize, Numbers, Part, Step, ToFloat

if TYPE_CHECKING:
    from PIL.Image import Image


@runtime_checkable
class Seeded(Protocol):
    """A transform whose result depends on chance. Any thread may call it, also several at once."""

    def for_batch(self, chance: Chance, ids: Ids) -> Sequence[Callable[[Any], Any]]:
        """One function per id, to be called with its sample: equal (seed, epoch, id, visit), equal results."""


class Compose:
    """Transforms one after the other: steps of this package, and any function of one argument.

    >>> transform = Compose([Decode(), RandomResizedCrop(224), RandomHorizontalFlip(), ToFloat()])
    >>> loader = Loader("/data/train", 256, transform=transform, seed=0)

    The result is an array: (height, width, 3) of uint8, or what the last step makes. Chance depends on (seed, epoch,
    id), which visit of the epoch it is, and the step's place in the row. A function gets the array that the steps
    before it have made.
    """

    def __init__(self, steps: Iterable[Any], *, first: int = 0) -> None:
        """`first` is the place of the first step where these are the rest of a longer row."""
        self.steps = _flat(steps)
        self._streams = [(at, step.numbers) for at, step in enumerate(self.steps, first) if step.numbers]
        self._line = _joined(self.steps)

    def __call__(self, value: Any, *, seed: int = 0, epoch: int = 0, id: int = 0) -> Any:
        """One sample, as the loader would have it made."""
        (run,) = self.for_batch(Chance(seed, epoch), as_ids([id]))
        return run(value)

    def __repr__(self) -> str:
        return f"Compose({self.steps!r})"

    def for_batch(self, chance: Chance, ids: Ids) -> list[Callable[..., Any]]:
        """One function per id. With `out=` it writes its result there, which must be of the pipeline's form."""
        drawn = [uniform(chance, ids, stream, count).tolist() for stream, count in self._streams]
        if not drawn:
            return [partial(self._run, ())] * len(ids)
        return [partial(self._run, numbers) for numbers in zip(*drawn, strict=True)]

    def form(self, given: Form | None = None) -> Form | None:
        """Type and shape of every result, where they are known; `given` is those of the samples."""
        for step in self.steps:
            given = step.form(given)
        return given

    def split(self) -> tuple[Compose | None, Compose | None]:
        """The leading steps whose result may be kept, and the rest, which draws as it would in the whole."""
        count = next((at for at, step in enumerate(self.steps) if not step.lasting), len(self.steps))
        kept, rest = self.steps[:count], self.steps[count:]
        return Compose(kept) if kept else None, Compose(rest, first=count) if rest else None

    def _run(self, numbers: Sequence[Numbers], value: Any, out: NDArray[Any] | None = None) -> Any:
        drawn = iter(numbers)
        for step in self._line:
            value = step.run(value, next(drawn) if step.numbers else (), out)
        if out is None:
            return as_array(value)
        if value is not out:
            write(value, out)
        return out


def as_pipeline(transform: Any) -> Any:
    """A step alone as a row of one; anything else as it is."""
    return Compose([transform]) if isinstance(transform, Step) else transform


class _Function(Step):
    """A user's function. What it gives is not known."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Any:
        return self.function(as_array(value))

    def form(self, given: Form | None) -> None:
        return None

    def __repr__(self) -> str:
        return repr(self.function)


class _DecodedPart(Step):
    """Decode and what follows it: the part is chosen first, by the size in the file's header."""

    def __init__(self, decode: Decode, part: Part) -> None:
        self._decode, self._part, self.numbers = decode, part, part.numbers

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Image:
        return decoded_part(value, partial(self._part.window, numbers=numbers), self._decode.reduce)


def _flat(steps: Iterable[Any]) -> list[Step]:
    if isinstance(steps, Step) or callable(steps):
        raise ConfigError(f"Compose takes a list of transforms: Compose([{steps!r}])")
    found: list[Step] = []
    for step in steps:
        if isinstance(step, type):
            raise ConfigError(f"Compose([... {step.__name__} ...]) is given a class: write {step.__name__}()")
        if isinstance(step, Compose):
            found += step.steps
        elif isinstance(step, Step):
            found.append(step)
        elif callable(step):
            found.append(_Function(step))
        else:
            raise ConfigError(f"Compose([... {step!r} ...]): a transform is a step of augury.transforms or a function")
    if not found:
        raise ConfigError("Compose([]) transforms nothing: leave transform= out")
    _check_order(found)
    return found


def _check_order(steps: Sequence[Step]) -> None:
    """What no picture can pass is a mistake in the row, not in a sample."""
    for before, step in pairwise(steps):
        if isinstance(step, Decode) and not isinstance(before, _Function):
            raise ConfigError(f"Compose: {step!r} takes the bytes of a file, so it comes first, not after {before!r}")
        if isinstance(before, ToFloat | Normalize) and not isinstance(step, Normalize | _Function):
            raise ConfigError(f"Compose: {step!r} takes a picture: put ToFloat() and Normalize() after it")


def _joined(steps: Sequence[Step]) -> list[Step]:
    if len(steps) > 1 and isinstance(steps[0], Decode) and isinstance(steps[1], Part):
        return [_DecodedPart(steps[0], steps[1]), *steps[2:]]
    return list(steps)
