"""What `gpt2exp sql show` prints for nanogpt_mini with AdamW and with MuonClip.

python tests/golden/sql_statements.py        writes the golden files again; review the diff
"""

from __future__ import annotations

from pathlib import Path

from gpt2exp.engines.sql.show import statements
from gpt2exp.sql_reports.show_command import configuration, listing

FOLDER = Path(__file__).parent
COMMON = ("model=nanogpt_mini", "hardware=duckdb", "data=synthetic", "data.vocab_size=65")
OVERRIDES = {
    FOLDER / "sql_statements_adamw.sql": (*COMMON, "optimizer=nanogpt_adamw"),
    FOLDER / "sql_statements_muonclip.sql": (*COMMON, "optimizer=muonclip"),
}


def rendered(file: Path) -> str:
    """A golden file as it should be."""
    return listing(statements(configuration(OVERRIDES[file])))


if __name__ == "__main__":
    for file in OVERRIDES:
        file.write_text(rendered(file), encoding="utf-8", newline="\n")
