"""Orders for torch's DataLoader: of a recipe, or by weights; for one process or many."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler as TorchSampler

from augury import recipes
from augury.arguments import check_positive, check_seed
from augury.distributed import Place, place
from augury.errors import AuguryWarning, ConfigError
from augury.exchange import open_exchange
from augury.feedback import Exchange, judged, together
from augury.ids import Ids, Scores
from augury.knowledge import Knowledge
from augury.reports import check_accuracy, read_report
from augury.samplers import Sampler as Sampling
from augury.samplers.importance import weighted, weighted_once
from augury.samplers.ranks import epoch_size, share, share_size
from augury.samplers.shuffle import InOrder, epoch_rng


class _EpochSampler(TorchSampler[int]):
    """What both samplers share: epochs, ranks, and where training is."""

    def __init__(self, total: int, seed: int, num_replicas: int | None, rank: int | None, drop_last: bool) -> None:
        place(rank, num_replicas)  # what is given must be right now; what is not is asked when iteration starts
        check_positive(**{"the number of samples": total})
        check_seed(seed)
        self.total, self.seed, self.drop_last = int(total), int(seed), drop_last
        self._given = rank, num_replicas
        self.epoch = self._offset = self._yielded = 0
        self._began = 0, 0
        """The epoch and the offset at which the last iteration began."""
        self._resumed = False

    def __len__(self) -> int:
        size, total = place(*self._given).world_size, self._size(self.epoch)
        return total // size if self.drop_last else -(-total // size)

    def _size(self, epoch: int) -> int:
        """How many samples an epoch visits, over all ranks."""
        return self.total

    def __iter__(self) -> Iterator[int]:
        if self._yielded:  # the last epoch was left midway
            self.set_epoch(self.epoch + 1)
        self._resumed = False
        self._began = self.epoch, self._offset
        for id in self._order(place(*self._given)).tolist():
            self._yielded += 1
            yield id
        self.set_epoch(self.epoch + 1)

    def _order(self, where: Place) -> Ids:
        """What this rank visits in the epoch, from the offset on."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch: from its start, or from where it was resumed."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch}: epochs are counted from 0")
        if not (self._resumed and epoch == self.epoch):
            self.epoch, self._offset, self._yielded, self._resumed = int(epoch), 0, 0, False

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the epoch is. With worker processes DataLoader draws ahead of training: then say how many samples
        this rank has `consumed` since the epoch started or was resumed."""
        epoch, offset, done = self.epoch, self._offset, self._yielded
        if consumed is not None:  # the draws may be an epoch ahead
            (epoch, offset), done = self._began, consumed
        offset += done * place(*self._given).world_size
        if offset >= self._size(epoch) and consumed is not None:
            epoch, offset = epoch + 1, 0
        offset = min(self._size(epoch), offset)
        return {"version": 1, "seed": self.seed, "epoch": epoch, "offset": offset, "samples": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there, with any number of ranks."""
        if state.get("version") != 1 or state["samples"] != self.total:
            raise ConfigError(
                f"this state is of version {state.get('version')!r} for {state.get('samples')} samples; "
                f"needed are version 1 and {self.total} samples"
            )
        epoch, offset = int(state["epoch"]), int(state["offset"])
        if epoch < 0 or not 0 <= offset <= self.total:
            raise ConfigError(f"this state is at sample {offset} of epoch {epoch}, which does not exist")
        self.seed, self.epoch, self._offset, self._yielded = int(state["seed"]), epoch, offset, 0
        self._began, self._resumed = (epoch, offset), True


class Sampler(_EpochSampler):
    """A recipe's order for torch's DataLoader: every rank gets equally many samples, and a run resumes in O(1).

    Like DistributedSampler (`set_epoch`, `num_replicas`, `rank`, `drop_last`), but with or without a process group, and
    each iteration is the next epoch, also without `set_epoch`. A recipe that learns is told with `feedback` and draws
    the next epoch by what it knows; it does not see the cache, so nothing is repeated because it is cached. A resumed
    epoch of such a recipe goes on with a new draw.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        recipe: str | recipes.Recipe | None = None,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(data if isinstance(data, int) else len(data), seed, num_replicas, rank, drop_last)
        self.recipe = recipes.find(recipe or recipes.DEFAULT)
        self._make = self.recipe.sampler if shuffle else InOrder
        if self._make(self.total, seed).skips:
            raise ConfigError(
                f"recipe {self.recipe.name!r} fetches what training does not get: only augury.Loader can do that"
            )
        self._scorer = None if self.recipe.scorer is None else self.recipe.scorer(self.total)
        self._known = Knowledge.none(0 if self._scorer is None else self.total)
        self._fresh: list[tuple[Ids, Scores]] = []
        self._exchange: Exchange | None = None
        self._warned = False

    def feedback(
        self,
        ids: Any = None,
        losses: Any = None,
        *,
        logits: Any = None,
        labels: Any = None,
        embeddings: Any = None,
        accuracy: float | None = None,
    ) -> None:
        """Tell the losses of a minibatch (or its logits and labels, or its embeddings and labels), or accuracy. Recipes
        that learn nothing ignore it.

        Ids come with the items of a `CachedDataset(..., with_ids=True)`.
        """
        if self._scorer is None:
            return
        if accuracy is not None:
            self._known.accuracies.append(check_accuracy(accuracy))
        if ids is None and accuracy is not None:
            return
        report = read_report(ids, losses, logits, labels, embeddings, self.total, self._scorer.needs)
        scored = judged(self._scorer, self._began[0], report)
        scored.teach(self._known)
        if self._exchange is not None:
            self._fresh.append((scored.ids, scored.scores))

    def _sampler(self, where: Place) -> Sampling:
        return self._make(self.total, self.seed, *where, share_size(self.total, 1, *where, self.drop_last))

    def _size(self, epoch: int) -> int:
        where = place(*self._given)
        return epoch_size(self.total, where.world_size, self._sampler(where).part(epoch))

    def _order(self, where: Place) -> Ids:
        sampler = self._sampler(where)
        if sampler.foreseeable:
            drawn = sampler.draw(self.epoch, self._known)
            return share(drawn[self._offset :], 1, *where, self.drop_last)
        self._meet(where.world_size)
        if self.epoch > 0 and not self._known.told and not self._warned:
            self._warned = True
            warnings.warn(
                f"recipe {self.recipe.name!r} learns from sampler.feedback(ids, losses), and an epoch has passed "
                "without any: until it is called all samples count alike",
                AuguryWarning,
                stacklevel=4,
            )
        drawn = sampler.draw(self.epoch, self._known)
        order = drawn[len(drawn) - share_size(self._size(self.epoch) - self._offset, 1, *where, self.drop_last) :]
        self._known.visit(order, self.epoch)
        return order

    def _meet(self, world_size: int) -> None:
        """Tell the other ranks what was learned here, and learn theirs."""
        self._exchange = open_exchange(world_size, self._exchange)
        if self._exchange is None:
            return
        fresh, self._fresh = self._fresh, []
        for ids, scores in self._exchange(*together(fresh)):
            self._known.visit(ids, self.epoch)
            self._known.learn(ids, scores)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        state = super().state_dict(consumed)
        if self._scorer is None:
            return state
        learned = self._known.state_dict() | {"scorer": self._scorer.state_dict()}
        return state | {"recipe": self.recipe.name, "learned": learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        known = None
        if self._scorer is not None:
            if "learned" not in state or state.get("recipe") != self.recipe.name:
                raise ConfigError(f"this state holds no scores of recipe {self.recipe.name!r}, which draws by them")
            known = Knowledge.from_state(state["learned"], self.total)
            self._scorer.load_state_dict(state["learned"].get("scorer", {}))
        super().load_state_dict(state)
        if known is not None:
            self._known = known
            self._fresh.clear()


class WeightedSampler(_EpochSampler):
    """Draws in proportion to weights, for any number of ranks and any number of weights.

    What `torch.utils.data.WeightedRandomSampler` is for one process (which stops at 2^24 weights): all ranks cut one
    draw among them, equally long and different from epoch to epoch. All must have the same weights and seed.
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.weights = _checked_weights(weights)
        total = len(self.weights) if num_samples is None else num_samples
        super().__init__(total, seed, num_replicas, rank, drop_last)
        self.replacement = replacement
        self._check_enough(self.weights)

    def set_weights(self, weights: Any) -> None:
        """Draw by these from the next epoch on; as many as before."""
        checked = _checked_weights(weights)
        if len(checked) != len(self.weights):
            raise ConfigError(f"there are {len(checked)} weights now, and there were {len(self.weights)}")
        self._check_enough(checked)
        self.weights = checked

    def _check_enough(self, weights: NDArray[np.float64]) -> None:
        weighty = np.count_nonzero(weights)
        if not self.replacement and self.total > weighty:
            raise ConfigError(
                f"num_samples={self.total} cannot be drawn from {weighty} samples of some weight without replacement"
            )

    def _order(self, where: Place) -> Ids:
        draw = weighted if self.replacement else weighted_once
        drawn = draw(epoch_rng(self.seed, self.epoch), self.weights, self.total)
        return share(drawn[self._offset :], 1, *where, self.drop_last)


def _checked_weights(weights: Any) -> NDArray[np.float64]:
    if isinstance(weights, Tensor):
        weights = weights.detach().cpu().numpy()
    try:
        checked = np.array(weights, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"weights are not an array of numbers: {error}") from None
    if len(checked) == 0 or not np.isfinite(checked).all() or checked.min() < 0 or checked.max() <= 0:
        raise ConfigError("weights must be finite numbers, none below 0 and at least one above")
    return checked
