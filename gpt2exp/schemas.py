"""What Hydra's config store knows of us: schemas and protocols, each built when Hydra asks for it.

A composition loads about ten of some thirty; building all of them takes longer than composing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from gpt2exp.config import (
    DATA_SCHEMAS,
    Config,
    EvaluationConfig,
    HardwareConfig,
    ModelConfig,
    ScheduleConfig,
    TrackingConfig,
    shipped,
)
from gpt2exp.optim.registry import optimizers

CONFIG_NAME = "config"


@cache
def register() -> None:
    """Tell Hydra's config store the schemas and the protocols. Idempotent."""
    repo = ConfigStore.instance().repo
    put(repo, "config_schema", partial(schema_node, Config))
    for group, schema in SCHEMAS.items():
        put(repo, group, partial(schema_node, schema), "schema")
    for kind, optimizer in optimizers().items():
        put(repo, kind, partial(schema_node, optimizer.recipe), "schema/optimizer")
    for kind, data in DATA_SCHEMAS.items():
        put(repo, kind, partial(schema_node, data), "schema/data")
    for file in protocol_files():
        put(repo, file.stem, partial(protocol_node, file), "protocol", "_global_", "multirun_protocols")
    OmegaConf.register_new_resolver("run_id", lambda: os.urandom(4).hex(), replace=True)


SCHEMAS = {
    "model": ModelConfig,
    "schedule": ScheduleConfig,
    "hardware": HardwareConfig,
    "evaluation": EvaluationConfig,
    "tracking": TrackingConfig,
}


def version_base() -> dict[str, str]:
    """The argument that 1.3 needs for today's behaviour, and that 1.4 warns about."""
    from hydra import __version__

    return {"version_base": "1.3"} if __version__.startswith("1.3.") else {}


def protocol_files() -> list[Path]:
    """The shipped protocols, one YAML file each."""
    return sorted(shipped("multirun_protocols").glob("*.yaml"))


def protocol_node(file: Path) -> DictConfig:
    """What a protocol's file says."""
    node = OmegaConf.create(file.read_text(encoding="utf-8"))
    assert isinstance(node, DictConfig)
    return node


def schema_node(schema: type) -> DictConfig:
    """A structured node of a frozen dataclass that Hydra may still write to while it composes."""
    node = OmegaConf.structured(schema)
    assert isinstance(node, DictConfig)
    _unlock(node)
    return node


def _unlock(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _unlock(child)


class LazyNode(ConfigNode):
    """Its `node` is what `build` returns; Hydra copies it before it writes to it."""

    def __init__(
        self, build: Callable[[], DictConfig], name: str, group: str | None, package: str | None, provider: str | None
    ) -> None:
        self.build = cache(build)
        self.name, self.group, self.package, self.provider = name, group, package, provider

    def __getattr__(self, name: str) -> Any:
        if name != "node":
            raise AttributeError(name)
        return self.build()


def put(
    repo: dict[str, Any],
    name: str,
    build: Callable[[], DictConfig],
    group: str | None = None,
    package: str | None = None,
    provider: str | None = None,
) -> None:
    """What `ConfigStore.store` does, later."""
    folder = repo
    for part in group.split("/") if group else ():
        folder = folder.setdefault(part, {})
    file = f"{name}.yaml"
    folder[file] = LazyNode(build, file, group, package, provider)
