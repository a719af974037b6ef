"""Entries of Hydra's config store that are built when they are asked for.

A composition loads about ten of some thirty schemas and protocols; building all of them takes longer than composing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigNode
from omegaconf import DictConfig


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
