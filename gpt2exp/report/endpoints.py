"""What runs may be compared by; a plan names one primary and any number of secondary ones."""

from __future__ import annotations

from collections.abc import Mapping

ENDPOINTS: Mapping[str, str] = {
    "final_val_loss": "nats a token",
    "final_token_error": "share of tokens",
    "final_train_loss": "nats a token",
    "steps_to_target": "steps",
    "tokens_to_target": "tokens",
    "seconds_to_target": "seconds",
}
"""Name -> unit. Those that end in `_to_target` need `plan.target_val_loss` and are censored data."""
