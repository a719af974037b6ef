"""check makes two disposable updates, writes nothing, and measures what learning rates hide."""

from __future__ import annotations

import numpy as np
import pytest

from gpt2exp.effective_step import hotter_than_keller_jordan, spectral_norm
from gpt2exp.optim.base import TensorInfo
from gpt2exp.optim.muonclip import MuonClipRecipe
from gpt2exp.optim.param_groups import assign
from gpt2exp.optim.registry import optimizers
from gpt2exp.verbs import check

TINY = ["model=tiny", "data=synthetic", "schedule.tokens_per_step=512", "evaluation.tokens=4096"]


def table(capsys, *overrides):
    assert check.main([*TINY, *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["group", "tensors"])
    return {cells[0]: cells for line in lines[start + 1 :] if len(cells := line.split()) >= 8}, lines


def test_adamw_moves_by_its_learning_rate_at_first(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, _ = table(capsys, "optimizer=adamw")
    _, tensors, lr, _, ratio, _, decay, *half_life = rows["decay"]
    assert (tensors, lr, decay) == ("10", "0.0006", "6e-05") and float(ratio) == pytest.approx(1, abs=0.1)
    assert half_life == ["11,552", "steps"]
    assert list(tmp_path.iterdir()) == []


def test_muonclip_says_how_much_hotter_it_is(capsys):
    rows, lines = table(capsys, "optimizer=muonclip")
    assert rows["hidden"][1] == "8" and rows["hidden"][6] == "0.002"
    assert "hidden: scale 1.60 to 3.20 times" in "\n".join(lines)


def test_at_gpt2s_shapes_the_rms_scale_is_5_to_11_times_keller_jordans():
    shapes = {"c_attn": (2304, 768), "c_proj": (768, 768), "c_fc": (3072, 768), "mlp": (768, 3072)}
    tensors = [TensorInfo(f"transformer.h.0.{name}.weight", shape) for name, shape in shapes.items()]
    others = [TensorInfo("transformer.wte.weight", (50257, 768)), TensorInfo("transformer.ln_f.bias", (768,))]
    hidden = assign(optimizers()["muonclip"].groups(MuonClipRecipe(), 12), [*others, *tensors])[0]
    low, high = hotter_than_keller_jordan(hidden)
    assert (low, high) == (pytest.approx(5.54, abs=0.01), pytest.approx(11.09, abs=0.01))


def test_spectral_norm_is_the_largest_singular_value():
    for shape in ((5, 9), (9, 5), (1, 4)):
        x = np.random.default_rng(0).standard_normal(shape)
        assert spectral_norm(x) == pytest.approx(np.linalg.norm(x, 2), rel=1e-10)
