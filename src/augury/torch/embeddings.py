"""Embeddings for `feedback`: what flows into a network's last layer, caught on its way.

    seen = augury.torch.capture_embeddings(model)
    for x, y, ids in loader:
        loss = F.cross_entropy(model(x), y)
        loader.feedback(ids, embeddings=seen.take(), labels=y)

A forward hook, and nothing more: the network is not changed, and nothing is computed twice.
"""

from __future__ import annotations

from types import TracebackType

import torch

from augury.errors import ConfigError


class Captured:
    """The last minibatch's embeddings, one row per sample."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self._rows: torch.Tensor | None = None
        self._handle = layer.register_forward_pre_hook(self._catch)

    def take(self) -> torch.Tensor:
        """Those of the last forward pass in training mode; each can be taken once. Tensors stay on their device."""
        rows, self._rows = self._rows, None
        if rows is None:
            raise ConfigError(
                "there are no embeddings to take: call the model on a minibatch, in training mode, before each take(); "
                "where it never calls the layer itself, name another one: capture_embeddings(model, layer)"
            )
        return rows

    def close(self) -> None:
        """Take the hook away."""
        self._handle.remove()
        self._rows = None

    def __enter__(self) -> Captured:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _catch(self, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if layer.training and inputs:  # a validation in between is no news of training samples
            self._rows = inputs[0].detach().flatten(1)


def capture_embeddings(model: torch.nn.Module, layer: torch.nn.Module | str | None = None) -> Captured:
    """Catch what flows into a layer: one of the model's modules, or its name. By default the last fully connected one,
    whose input is the penultimate layer's output.

    Rows of several positions (a sequence, a picture) are laid end to end: name a layer behind the pooling. Where
    dropout comes just before the last layer, name the dropout: what flows into it does not depend on chance.
    """
    return Captured(layer if isinstance(layer, torch.nn.Module) else _find(model, layer))


def _find(model: torch.nn.Module, name: str | None) -> torch.nn.Module:
    named: dict[str, torch.nn.Module] = dict(model.named_modules())
    if name is None:
        linear = [module for module in named.values() if isinstance(module, torch.nn.Linear)]
        if not linear:
            raise ConfigError("the model has no fully connected layer: name the one whose input is to be captured")
        return linear[-1]
    if name not in named:
        raise ConfigError(f"the model has no layer {name!r}; it has {', '.join(filter(None, named))}")
    return named[name]
