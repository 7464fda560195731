"""``corrupt``: one bit of a rank's replicated state changes and nothing notices."""

from __future__ import annotations

import torch

from keepstep.runtime.state import State


def flip_bit(state: State) -> None:
    """Flip one bit of the largest parameter, so that the next update cannot hide it."""
    modules = [m for m in state.replicated.values() if isinstance(m, torch.nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    largest = max(parameters, key=lambda parameter: parameter.numel())
    # Through .data, which has a version counter of its own: memory that changes by itself
    # leaves no trace in torch's books either. Bit 3 of the last byte but one is in the upper
    # half of the mantissa: a lower one could vanish in the rounding of the next update.
    values = largest.data.view(-1)
    place = values.numel() // 2
    raw = values[place : place + 1].view(torch.uint8)
    raw[max(0, raw.numel() - 2)] ^= 8
