"""The models that `bench-torch` trains, each with its loss and the inputs of a rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

MLP_BATCH = 128
GPT_BATCH, SEQUENCE, VOCABULARY = 4, 128, 256


@dataclass(frozen=True)
class Shape:
    """The size of a GPT. Tensor parallelism divides the heads, and a pipeline the blocks."""

    width: int
    heads: int
    blocks: int


# By the approximate number of parameters.
SHAPES = {"10M": Shape(384, 12, 6), "100M": Shape(768, 12, 14)}


class Block(nn.Module):
    """A block of a transformer. Tensor parallelism divides the heads, and the inner layer of the MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.head_width = width // shape.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        source = self.before_attention(tokens)
        heads = (layer(source).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        tokens = tokens + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return tokens + self.down(gelu(self.up(self.before_mlp(tokens))))


class Embedding(nn.Module):
    """The sum of the embeddings of tokens and of their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQUENCE, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position.weight


def mlp() -> nn.Sequential:
    """Returns an MLP with 1.9 M parameters, identical on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def mlp_inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(MLP_BATCH, 784, generator=random), torch.randint(10, (MLP_BATCH,), generator=random)


def gpt(shape: Shape) -> nn.Sequential:
    """Returns a byte-level GPT, identical on all ranks. A slice of it can be a pipeline stage."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(shape.width), nn.Linear(shape.width, VOCABULARY, bias=False))
    return nn.Sequential(Embedding(shape.width), *(Block(shape) for _ in range(shape.blocks)), head)


def gpt_inputs(seed: int, batch: int = GPT_BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random tokens, and the next token of each as its target."""
    tokens = torch.randint(VOCABULARY, (batch, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the cross entropy of samples or tokens."""
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())
