"""Composing many configurations without Hydra's tenth of a second for each."""

from __future__ import annotations

from functools import cache

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from gpt2exp.command_line import groups
from gpt2exp.compose import hydra_ready
from gpt2exp.config import Config
from gpt2exp.schemas import CONFIG_NAME
from gpt2exp.validate import typed


@cache
def composed(*choices: str) -> DictConfig:
    """Hydra's composition of group choices: copy it before changing it."""
    with hydra_ready():
        return compose(CONFIG_NAME, overrides=list(choices))


def quickly(*overrides: str) -> Config:
    """What `gpt2exp.compose.compose(overrides)` gives: keys are set the way Hydra sets them.

    Raises:
        ConfigError: as there, but for what composition itself refuses.
    """
    choices = [text for text in overrides if text.partition("=")[0] in groups()]
    cfg = composed(*choices).copy()
    for text in overrides:
        if text not in choices:
            override = OverridesParser.create().parse_override(text)
            OmegaConf.update(cfg, override.key_or_group, override.value())
    return typed(cfg)
