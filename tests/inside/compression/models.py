"""Small models for the variants: a convolutional network, and a layer with the names of Llama's in transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

IMAGES = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(4, 12, 32, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[Any] = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 9, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers).eval()


class Attention(nn.Module):
    """Attention as Llama's in transformers: only the size of a head is a number of the module."""

    def __init__(self, num_key_value_heads: int) -> None:
        super().__init__()
        self.head_dim = 8
        self.q_proj = nn.Linear(32, 32, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(32, 8 * num_key_value_heads, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(32, 32, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        shape = (*states.shape[:-1], -1, self.head_dim)
        parts = [part(states).view(shape).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)]
        found = functional.scaled_dot_product_attention(*parts, enable_gqa=True)
        return self.o_proj(found.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, num_key_value_heads: int) -> None:
        super().__init__()
        self.attention = Attention(num_key_value_heads)
        self.gate_proj, self.up_proj = nn.Linear(32, 64), nn.Linear(32, 64)
        self.down_proj = nn.Linear(64, 32)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.attention(states)
        return states + self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


def decoder(num_key_value_heads: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Decoder(num_key_value_heads)).eval()
