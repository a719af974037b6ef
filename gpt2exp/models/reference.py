"""GPT-2 written from its definition: upstream's names, initialisation and numerics, with optional biases.

A decoder-only transformer with learned positions, pre-norm blocks, tanh-approximated GELU and an
output head tied to the token embedding (Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019; residual projections start smaller by 1/sqrt(2 * n_layer)). `bias=False` drops the
biases of linear maps and layer norms (nanoGPT's form).

Shape suffixes: B batch, T tokens, C width (n_embd), H heads, D width of a head, F hidden width of the
MLP (4C), V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpt2exp.config import ModelConfig

INIT_STD = 0.02


class Linear(nn.Linear):
    """A linear map that `GPT` initialises: its constructor draws no random numbers.

    `init_std` is the standard deviation of its weights; None leaves them alone (the tied head).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, init_std: float | None) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.init_std = init_std

    def reset_parameters(self) -> None:
        """Does nothing: torch's default would draw from its global generator for nothing."""


class Embedding(nn.Embedding):
    """A table of vectors that `GPT` initialises: its constructor draws no random numbers."""

    def reset_parameters(self) -> None:
        """Does nothing: torch's default would draw from its global generator for nothing."""


class CausalSelfAttention(nn.Module):
    """Multi-head attention of every token to itself and the tokens before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.n_embd % config.n_head == 0, "n_embd must be a multiple of n_head"
        self.n_head = config.n_head
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, config.bias, INIT_STD)
        self.c_proj = Linear(config.n_embd, config.n_embd, config.bias, _residual_std(config))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Returns the attended values after the output projection, (B, T, C)."""
        B, T, C = x_BTC.shape
        qkv_BT3C: Tensor = self.c_attn(x_BTC)
        q_BHTD, k_BHTD, v_BHTD = (
            part_BTC.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part_BTC in qkv_BT3C.chunk(3, dim=2)
        )
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        projected_BTC: Tensor = self.c_proj(y_BHTD.transpose(1, 2).reshape(B, T, C))
        return projected_BTC


class MLP(nn.Module):
    """Two linear maps around a tanh-approximated GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, config.bias, INIT_STD)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, config.bias, _residual_std(config))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Returns (B, T, C)."""
        hidden_BTF = F.gelu(self.c_fc(x_BTC), approximate="tanh")
        projected_BTC: Tensor = self.c_proj(hidden_BTF)
        return projected_BTC


class Block(nn.Module):
    """Attention, then MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Returns the residual stream after the block, (B, T, C)."""
        x_BTC = x_BTC + self.attn(self.ln_1(x_BTC))
        after_BTC: Tensor = x_BTC + self.mlp(self.ln_2(x_BTC))
        return after_BTC


class Transformer(nn.Module):
    """Embeddings, blocks and the final norm: everything before the output head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)

    def forward(self, idx_BT: Tensor) -> Tensor:
        """Returns the normalised residual stream, (B, T, C)."""
        positions_T = torch.arange(idx_BT.size(1), device=idx_BT.device)
        x_BTC: Tensor = self.wte(idx_BT) + self.wpe(positions_T)
        for block in self.h:
            x_BTC = block(x_BTC)
        normalised_BTC: Tensor = self.ln_f(x_BTC)
        return normalised_BTC


class GPT(nn.Module):
    """The language model; initialised as upstream's at seed 42.

    For another seed reseed `init_rng` and apply `_init_weights` again, as `gpt2exp.models.build` does.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False, init_std=None)
        self.transformer.wte.weight = self.lm_head.weight
        self.init_rng = torch.Generator().manual_seed(42)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Linear):
            if module.init_std is not None:
                nn.init.normal_(module.weight, mean=0.0, std=module.init_std, generator=self.init_rng)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=INIT_STD, generator=self.init_rng)

    def forward(
        self, idx_BT: Tensor, targets_BT: Tensor | None = None, return_logits: bool = True
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits and mean cross-entropy in nats; targets of -1 are left out of the mean.

        Args:
            idx_BT: token ids, T at most `block_size`.
            targets_BT: the next token at each position; None asks for the last position's logits only.
            return_logits: False returns None in their place, so that they can be freed.

        Returns:
            logits_BTV (B, 1, V without targets) or None, and the loss or None.
        """
        assert idx_BT.size(1) <= self.config.block_size, "more tokens than the model has positions"
        x_BTC = self.transformer(idx_BT)
        if targets_BT is None:
            logits_BTV, loss = self.lm_head(x_BTC[:, -1:]), None
        else:
            logits_BTV = self.lm_head(x_BTC)
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=-1)
        return (logits_BTV if return_logits else None), loss


def _residual_std(config: ModelConfig) -> float:
    return INIT_STD / math.sqrt(2 * config.n_layer)
