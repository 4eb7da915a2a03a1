"""The buffers of a network that a moving average of weights (`TrainSettings.ema_decay`) includes."""

from __future__ import annotations

from torch import Tensor, nn

from avuc.methods.swag import SWAGModel


def infinite_buffers(model: nn.Module) -> set[str]:
    """Return the names of buffers that hold infinity or NaN, such as a causal mask of attention: no mean exists.

    Args:
        model: at the start of its training.
    """
    buffers = _network(model).named_buffers()
    return {name for name, buffer in buffers if buffer.is_floating_point() and not bool(buffer.isfinite().all())}


def averaged_buffers(model: nn.Module, infinite: set[str]) -> list[Tensor]:
    """Return the floating-point buffers to average.

    Args:
        model: the model in training.
        infinite: names of buffers that are left as they are.
    """
    buffers = _network(model).named_buffers()
    return [buffer for name, buffer in buffers if buffer.is_floating_point() and name not in infinite]


def _network(model: nn.Module) -> nn.Module:
    # not what SWAG has collected: its average would begin with zeros
    return model.net if isinstance(model, SWAGModel) else model
