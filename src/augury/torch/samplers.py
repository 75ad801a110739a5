"""Orders for torch's DataLoader: of a recipe, or by weights; for one process or many."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler as TorchSampler

from augury import recipes
from augury.distributed import Place, place
from augury.errors import ConfigError
from augury.exchange import open_exchange
from augury.feedback import Exchange
from augury.ids import NONE, Ids, Scores
from augury.knowledge import Knowledge
from augury.reports import read_report
from augury.samplers.importance import weighted, weighted_once
from augury.samplers.ranks import share
from augury.samplers.shuffle import InOrder, epoch_rng


class _EpochSampler(TorchSampler[int]):
    """What both samplers share: epochs, ranks, and where training is."""

    def __init__(self, total: int, seed: int, num_replicas: int | None, rank: int | None, drop_last: bool) -> None:
        if total < 1:
            raise ConfigError("there is no sample to draw")
        place(rank, num_replicas)  # what is given must be right now; what is not is asked when iteration starts
        self.total, self.seed, self.drop_last = total, seed, drop_last
        self._given = rank, num_replicas
        self.epoch = self._offset = self._yielded = 0
        self._resumed = False

    def __len__(self) -> int:
        size = place(*self._given).world_size
        return self.total // size if self.drop_last else -(-self.total // size)

    def __iter__(self) -> Iterator[int]:
        if self._yielded:  # the last epoch was left midway
            self.set_epoch(self.epoch + 1)
        self._resumed = False
        for id in self._order(place(*self._given)).tolist():
            self._yielded += 1
            yield id
        self.set_epoch(self.epoch + 1)

    def _order(self, where: Place) -> Ids:
        """What this rank visits in the epoch, from the offset on."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch: from its start, or from where it was resumed."""
        if not (self._resumed and epoch == self.epoch):
            self.epoch, self._offset, self._yielded, self._resumed = int(epoch), 0, 0, False

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the epoch is. With worker processes DataLoader draws ahead of training: then say how many samples
        this rank has `consumed` since the epoch started or was resumed."""
        done = self._yielded if consumed is None else consumed
        offset = min(self.total, self._offset + done * place(*self._given).world_size)
        return {"version": 1, "seed": self.seed, "epoch": self.epoch, "offset": offset, "samples": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there, with any number of ranks."""
        if state.get("version") != 1 or state["samples"] != self.total:
            raise ConfigError(
                f"this state is of version {state.get('version')!r} for {state.get('samples')} samples; "
                f"needed are version 1 and {self.total} samples"
            )
        self.seed = int(state["seed"])
        self.epoch, self._offset, self._yielded = int(state["epoch"]), int(state["offset"]), 0
        self._resumed = True


class Sampler(_EpochSampler):
    """A recipe's order for torch's DataLoader: every rank gets equally many samples, and a run resumes in O(1).

    Like DistributedSampler (`set_epoch`, `num_replicas`, `rank`, `drop_last`), but with or without a process group, and
    each iteration is the next epoch, also without `set_epoch`. A recipe that learns is told with `feedback` and draws
    the next epoch by what it knows; it does not see the cache, so nothing is repeated because it is cached.
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
        self._scorer = None if self.recipe.scorer is None else self.recipe.scorer(self.total)
        self._known = Knowledge.none(0 if self._scorer is None else self.total)
        self._fresh: list[tuple[Ids, Scores]] = []
        self._exchange: Exchange | None = None

    def feedback(self, ids: Any, losses: Any = None, *, logits: Any = None, labels: Any = None) -> None:
        """Tell the losses of a minibatch (or its logits and labels). Recipes that learn nothing ignore it.

        Ids come with the items of a `CachedDataset(..., with_ids=True)`.
        """
        if self._scorer is None:
            return
        report = read_report(ids, losses, logits, labels, self.total)
        values = report.losses()
        scores = self._scorer.score(report.ids, values)
        self._known.add_losses(float(values.sum()), len(values))
        self._known.learn(report.ids, scores)
        self._fresh.append((report.ids, scores))

    def _order(self, where: Place) -> Ids:
        sampler = self._make(self.total, self.seed, *where)
        if sampler.foreseeable:
            drawn = sampler.draw(self.epoch, self._known)
            return share(drawn[self._offset :], 1, *where, self.drop_last)
        self._meet(where.world_size)
        self._known.begin_epoch(self.epoch)
        drawn = sampler.draw(self.epoch, self._known)
        left = len(share(np.arange(self.total - self._offset), 1, *where, self.drop_last))
        order = drawn[len(drawn) - left :]
        self._known.visit(order)
        return order

    def _meet(self, world_size: int) -> None:
        """Tell the other ranks what was learned here, and learn theirs."""
        if self._exchange is None:
            self._exchange = open_exchange(world_size)
        if self._exchange is None:
            return
        ids = np.concatenate([NONE, *(ids for ids, _ in self._fresh)])
        scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in self._fresh)])
        self._fresh.clear()
        for theirs, learned in self._exchange(ids, scores):
            self._known.visit(theirs)
            self._known.learn(theirs, learned)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        state = super().state_dict(consumed)
        return state if self._scorer is None else state | {"learned": self._known.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scorer is not None:
            if "learned" not in state:
                raise ConfigError(f"this state holds no scores, which recipe {self.recipe.name!r} draws by")
            self._known = Knowledge.from_state(state["learned"], self.total)
        super().load_state_dict(state)


class WeightedSampler(_EpochSampler):
    """Draws in proportion to weights, for any number of ranks and any number of weights.

    What `torch.utils.data.WeightedRandomSampler` is for one process (which stops at 2^24 weights): all ranks cut one
    draw among them, equally long and different from epoch to epoch. All must have the same weights and seed.
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.weights = _checked_weights(weights)
        total = len(self.weights) if num_samples is None else num_samples
        super().__init__(total, seed, num_replicas, rank, drop_last)
        self.replacement = replacement
        if not replacement and total > np.count_nonzero(self.weights):
            raise ConfigError(
                f"num_samples={total} cannot be drawn from {np.count_nonzero(self.weights)} samples of some weight "
                "without replacement"
            )

    def set_weights(self, weights: Any) -> None:
        """Draw by these from the next epoch on; as many as before."""
        checked = _checked_weights(weights)
        if len(checked) != len(self.weights):
            raise ConfigError(f"there are {len(checked)} weights now, and there were {len(self.weights)}")
        self.weights = checked

    def _order(self, where: Place) -> Ids:
        draw = weighted if self.replacement else weighted_once
        drawn = draw(epoch_rng(self.seed, self.epoch), self.weights, self.total)
        return share(drawn[self._offset :], 1, *where, self.drop_last)


def _checked_weights(weights: Any) -> NDArray[np.float64]:
    if isinstance(weights, Tensor):
        weights = weights.detach().cpu().numpy()
    checked = np.array(weights, np.float64).reshape(-1)
    if len(checked) == 0 or not np.isfinite(checked).all() or checked.min() < 0 or checked.max() <= 0:
        raise ConfigError("weights must be finite numbers, none below 0 and at least one above")
    return checked
