"""docs/results.ipynb runs, cell by cell, on results made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/results.ipynb"
PRINT_LAST = """
import ast, json, sys
import matplotlib
matplotlib.use("Agg")
space = {}
with open(sys.argv[1]) as file:
    cells = json.load(file)["cells"]
for source in cells:
    if source["cell_type"] != "code":
        continue
    tree = ast.parse("".join(source["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    if last is not None:
        print(eval(compile(ast.Expression(last.value), "cell", "eval"), space))
"""


@pytest.fixture(scope="module")
def folder(tiny_run, tmp_path_factory):
    """A finished protocol of tiny runs, with spectra."""
    folder = tmp_path_factory.mktemp("notebook")
    overrides = [text for text in tiny_run if not text.startswith("tracking")]
    call = [sys.executable, "-m", "gpt2exp", "-m", "protocol=six_run_nano", *overrides, "tracking.every=2",
            "tracking.backend=fast", "plan.target_val_loss=5.5"]  # fmt: skip
    done = subprocess.run(
        call, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_cell_runs_and_shows_what_it_says(folder):
    call = [sys.executable, "-W", "error", "-c", PRINT_LAST, str(NOTEBOOK)]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'runs': (6," in done.stdout and "'pairs': (6, 8)" in done.stdout
    assert done.stdout.rstrip().endswith("Legend") and "L01_W_O" not in done.stdout


def test_the_frames_hold_what_the_files_hold(folder):
    import gpt2exp
    from gpt2exp import rundir

    results = gpt2exp.results(folder)
    run = folder / "outputs/six_run_nano/seed=43/adamw_nano"
    one = results.evaluations[(results.evaluations.seed == 43) & (results.evaluations.arm == "adamw_nano")]
    assert list(one.val_loss) == [row["val_loss"] for row in rundir.read_rows(run, "evaluations")]
    assert len(results.spectra) == 6 * 3 * 12 and set(results.spectra.step) == {0, 2, 4}
    assert set(results.updates.columns) >= {"run", "arm", "seed", "step", "loss", "qk_max"}
    assert set(results.runs["training.optimizer.kind"]) == {"adamw", "muonclip"}
    assert not results.pairs.isna().to_numpy().any()


def test_the_notebook_holds_its_outputs_and_no_foreign_path():
    text = NOTEBOOK.read_text()
    cells = json.loads(text)["cells"]
    assert all(
        cell["outputs"] for cell in cells if cell["cell_type"] == "code" and not cell["source"][-1].endswith(";")
    )
    assert not any(word in text for word in ("/tmp", "/home", "/root", "Traceback"))
