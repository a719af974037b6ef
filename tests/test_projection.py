"""Estimates: exact where they are counts, monotone where they are bounds, and refused in time."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from quick import quickly

from gpt2exp.errors import StorageError
from gpt2exp.models.inventory import parameters
from gpt2exp.projection import (
    check_disk,
    checkpoint_bytes,
    micro_batch_size,
    parameter_count,
    row_bytes,
    snapshot_bytes,
    tracking_bytes,
)

MODELS = ["nano", "tiny", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl"]


def config(model="nano", *overrides):
    return quickly(f"model={model}", "model.source=reference", *overrides)


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("model", MODELS)
def test_parameter_count_is_the_inventorys(model, bias):
    cfg = config(model, f"model.bias={bias}").model
    assert parameter_count(cfg) == sum(parameter.size for parameter in parameters(cfg))


def test_gpt2_is_124_439_808():
    assert parameter_count(config("gpt2").model) == 124_439_808


def test_the_micro_batch_is_the_largest_divisor_that_fits():
    cfg = config()
    fits = 5 * row_bytes(cfg) / 0.5 + 4 * 4 * parameter_count(cfg.model) / 0.5
    assert micro_batch_size(cfg, int(fits), slots=2) == 4  # 32 rows a step: 5 fit, 4 divides
    assert micro_batch_size(cfg, 10**12, slots=2) == 32
    assert micro_batch_size(cfg, 0, slots=2) == 1


def test_a_given_micro_batch_is_taken():
    assert micro_batch_size(config("nano", "hardware.micro_batch_size=2"), 10**12, slots=2) == 2


def test_gpt2_at_full_context_takes_few_rows_on_24_gigabytes():
    cfg = config("gpt2", "schedule=gpt2_fineweb", "data.allow_repeat=true", "evaluation=off")
    assert 1 <= micro_batch_size(cfg, 24 * 2**30, slots=2) <= 16


def test_a_checkpoint_is_weights_and_slots():
    assert checkpoint_bytes(config("gpt2"), slots=2) == 3 * 4 * 124_439_808


def test_a_full_disk_is_refused_before_anything_starts(monkeypatch, tmp_path):
    cfg = config("gpt2")
    free = shutil.disk_usage(tmp_path)._replace(free=2_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(
        StorageError, match=r"2\.0 GB free.*3 checkpoints.*spectra \(1\.0 GB\) need 6\.9 GB.*checkpoint\.keep"
    ):
        check_disk(cfg, slots=2, folder=tmp_path / "not" / "there")
    check_disk(replace(cfg, checkpoint=replace(cfg.checkpoint, keep=0)), slots=2, folder=tmp_path)


def test_snapshots_are_bounded_by_the_queue_unless_they_are_kept():
    """156 kept snapshots of GPT-2 would be 53 GB a run."""
    cfg = config("gpt2")
    cfg = replace(cfg, schedule=replace(cfg.schedule, num_steps=19_375))
    assert snapshot_bytes(cfg) == 339_738_624
    waiting = tracking_bytes(cfg)
    kept = tracking_bytes(replace(cfg, tracking=replace(cfg.tracking, keep_weights=True)))
    eigenvalues = 156 * 72 * 768 * 8
    assert waiting == 5 * snapshot_bytes(cfg) + eigenvalues and kept == 156 * snapshot_bytes(cfg) + eigenvalues
