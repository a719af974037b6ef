"""MuonClip (Kimi K2, 2025): Muon, and after each update the query and key rows of heads with large logits shrink."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2exp.optim.base import Optimizer
from gpt2exp.optim.muon import MuonRecipe, check, clip, groups
from gpt2exp.optim.qk_clip import MaxLogit, QKClip


@dataclass(frozen=True)
class MuonClipRecipe(MuonRecipe):
    """Muon's recipe and the clip's; with no head over the threshold the two are equal bit for bit."""

    kind: str = "muonclip"
    label: str = "muonclip"
    qk_clip_threshold: float = 100.0
    qk_clip_balance: float = 0.5
    max_logit: MaxLogit = MaxLogit.causal_signed


def qk_clip(recipe: MuonClipRecipe) -> QKClip:
    """The clip's part of the recipe."""
    return QKClip(recipe.qk_clip_threshold, recipe.qk_clip_balance, recipe.max_logit)


def check_clip(recipe: MuonClipRecipe) -> list[str]:
    """Muon's problems and the clip's."""
    problems = check(recipe)
    if not recipe.qk_clip_threshold > 0:
        problems.append(
            f"optimizer.qk_clip_threshold={recipe.qk_clip_threshold:g}: must be greater than 0; "
            "optimizer=muon never clips"
        )
    if not 0 <= recipe.qk_clip_balance <= 1:
        problems.append(f"optimizer.qk_clip_balance={recipe.qk_clip_balance:g}: must lie in [0, 1]")
    return problems


OPTIMIZER = Optimizer("muonclip", MuonClipRecipe, groups, check_clip, clip, qk_clip)
