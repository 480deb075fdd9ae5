"""The models that `bench-torch` trains, each with its loss and the inputs of a rank."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

MLP_BATCH = 128
GPT_BATCH, SEQUENCE, VOCABULARY = 4, 128, 256
_WIDTH, HEADS, BLOCKS = 384, 12, 6


class Block(nn.Module):
    """A block of a transformer. Tensor parallelism divides the heads, and the inner layer of the MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        source = self.before_attention(tokens)
        heads = (layer(source).unflatten(-1, (-1, _WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        tokens = tokens + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return tokens + self.down(gelu(self.up(self.before_mlp(tokens))))


class Embedding(nn.Module):
    """The sum of the embeddings of tokens and of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, _WIDTH), nn.Embedding(SEQUENCE, _WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position.weight


def mlp() -> nn.Sequential:
    """Returns an MLP with 1.9 M parameters, identical on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def mlp_inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(MLP_BATCH, 784, generator=random), torch.randint(10, (MLP_BATCH,), generator=random)


def gpt() -> nn.Sequential:
    """Returns a byte-level GPT with 10.9 M parameters, identical on all ranks. A slice of it can be a pipeline stage."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, VOCABULARY, bias=False))
    return nn.Sequential(Embedding(), *(Block() for _ in range(BLOCKS)), head)


def gpt_inputs(seed: int, batch: int = GPT_BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random tokens, and the next token of each as its target."""
    tokens = torch.randint(VOCABULARY, (batch, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the cross entropy of samples or tokens."""
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())
