"""What XLA will really compute: the precision of every product, read from the graph itself.

A matmul precision that was set says nothing by itself: it is applied when a graph is lowered, is no part of the key
under which graphs are kept, and `torch.einsum` does not get it at all (measured with torch_xla 2.9).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

PRODUCT = re.compile(r"= (?P<type>\w+)\[[^\]]*\]\S* dot\(.*")
PRECISION = re.compile(r"operand_precision=\{(?P<precision>[^}]*)\}")
DEFAULT = "default"


def product_precisions(hlo: str) -> Counter[tuple[str, str]]:
    """How many products of each (result type, operand precision) an HLO text holds: `("f32", "highest")`."""
    found: Counter[tuple[str, str]] = Counter()
    for line in hlo.splitlines():
        product = PRODUCT.search(line)
        if product is not None:
            marked = PRECISION.search(line)
            operands = marked["precision"].split(",") if marked else [DEFAULT]
            found[product["type"], min(operands, key=_strength)] += 1
    return found


def imprecise(found: Iterable[tuple[str, str]]) -> list[str]:
    """Products of fp32 or wider that are not computed at full precision, as text."""
    return [f"{type_} at {precision}" for type_, precision in found if type_ != "bf16" and precision != "highest"]


def _strength(precision: str) -> int:
    return {DEFAULT: 0, "high": 1, "highest": 2}.get(precision.strip(), 0)
