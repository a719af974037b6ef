"""MuonClip: Muon's row; the clip itself acts on the model after the rule and is tested with the engine."""

from __future__ import annotations

from dataclasses import fields

import harness

from gpt2exp.optim.muonclip import MuonClipRecipe

MUON = harness.load("muon")


def clipped(recipe):
    """Muon's settings as MuonClip's."""
    values = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name not in ("kind", "label")}
    return MuonClipRecipe(**values)


ROW = harness.Row(
    "muonclip",
    tuple(clipped(recipe) for recipe in MUON.RECIPES[:2]),
    MUON.reference,
    MUON.TorchMuon,
    tuple(clipped(recipe) for recipe in MUON.TORCH_SETTINGS[:1]),
)
