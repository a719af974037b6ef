"""The promises about the code's shape: size, imports, and the three files of an optimizer."""

from __future__ import annotations

import ast
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpt2exp"
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "numpy", "pandas", "scipy", "matplotlib", "weightwatcher"}

OPTIM_RECIPES = {
    "optim.base", "optim.registry", "optim.param_groups", "optim.checks", "optim.orthogonalize", "optim.newton_schulz",
}  # fmt: skip
SETTLED = {"config", "derived", "validate", "rules", "suggest", "identity", "compose", "explain", "schedule", "atomic"}
ALLOWED = {
    "errors": set(),
    "atomic": set(),
    "schedule": set(),
    "suggest": set(),
    "config": OPTIM_RECIPES,
    "derived": {"config"},
    "validate": {"config", "rules", "suggest"},
    "rules": {"config", "derived", "report.endpoints", "engines.sql.forms", *OPTIM_RECIPES},
    "identity": {"config", "derived"},
    "schemas": {"config", *OPTIM_RECIPES},
    "compose": {"config", "validate", "suggest", "explain", "schemas", *OPTIM_RECIPES},
    "explain": {"validate", "suggest"},
    "gate": {"config", "validate", "identity", "compose", "explain", "main", "protocol.plan", "report.publish"},
    "rundir": {"atomic", "identity"},
    "spectral": {"rundir", "atomic", "config", "models.inventory", "spectral"},
    "report": {"rundir", "atomic", "identity", "report", "spectral", "protocol.plan", "config"},
    "run_store": {"rundir", "identity", "report.runs", "spectral.tables", "run_store"},
    "protocol": {"config", "derived", "identity", "rundir", "atomic", "protocol"},
    "projection": {"config", "derived"},
    "optim": {"schedule", "optim", "engines.torch"},
    "models": {"config", "atomic", "models", "data.download"},
    "data": {"config", "atomic", "data"},
    "engines": {"models", "optim", "data.windows", "engines", "config"},
    "preflight": {
        "config", "compose", "derived", "identity", "atomic", "rundir", "assembly", "projection", "models",
        "data.windows", "engines", "optim", "train.progress", "verbs", "verification.child", "preflight", "rules",
    },
    "train": {
        "engines.base", "data.windows", "schedule", "rundir", "config", "derived", "identity", "train", "atomic",
        "spectral",
    },
}  # fmt: skip
"""Rooms and what they may import besides errors; rooms that are not listed may import anything."""
NO_TORCH = {
    "config",
    "derived",
    "validate",
    "rules",
    "identity",
    "compose",
    "gate",
    "rundir",
    "data",
    "train",
    "spectral",
    "report",
    "run_store",
    "schedule",
}
NO_NUMPY = {
    "config",
    "derived",
    "validate",
    "rules",
    "identity",
    "compose",
    "explain",
    "gate",
    "rundir",
    "schedule",
    "main",
}


def module_name(file: Path) -> str:
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def room(name: str) -> str:
    return name.partition(".")[0]


def imports(file: Path, inside_functions: bool = True):
    """Modules that a file imports; those under TYPE_CHECKING are only for the type checker."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for guard in ast.walk(tree)
        if isinstance(guard, ast.If) and "TYPE_CHECKING" in ast.unparse(guard.test)
        for node in ast.walk(guard)
    }
    if not inside_functions:
        skipped |= {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def functions():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                doc = ast.get_docstring(node, clean=False) is not None
                start = first.end_lineno + 1 if doc else first.lineno
                yield f"{file.relative_to(ROOT)}:{node.name}", max(0, node.end_lineno - start + 1)


def test_functions_keep_the_size_budget():
    sizes = sorted(size for _, size in functions())
    assert statistics.median(sizes) <= 10
    assert sizes[int(0.95 * len(sizes))] <= 40
    assert [name for name, size in functions() if size > 60] == []


def test_files_keep_the_size_budget():
    long = {str(f.relative_to(ROOT)): n for f in FILES if (n := len(f.read_text("utf-8").splitlines())) > 400}
    assert long == {}


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_rooms_import_only_what_the_table_allows(file):
    name = module_name(file)
    allowed = ALLOWED.get(name, ALLOWED.get(room(name)))
    if allowed is None:
        return
    for target in imports(file):
        if not target.startswith("gpt2exp."):
            continue
        target = target.removeprefix("gpt2exp.")
        assert target == "errors" or target in allowed or room(target) in allowed, f"{name} imports {target}"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_torch_and_numpy_stay_out_of_the_front_door(file):
    name = module_name(file)
    found = {room(target) for target in imports(file)}
    if room(name) in NO_TORCH:
        assert "torch" not in found
    if room(name) in NO_NUMPY:
        assert "numpy" not in found
    if room(name) == "optim":
        assert "torch" not in {room(target) for target in imports(file, inside_functions=False)}


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_every_function_is_annotated(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            assert node.returns is not None and bare == [], f"{module_name(file)}.{node.name}"


def test_the_product_names_no_machine_and_nothing_outside_it():
    mine = Path(__file__)
    tests = [file for file in (ROOT / "tests").rglob("*.py") if file != mine]
    for file in [*FILES, *tests, *(ROOT / "conf").rglob("*.yaml"), ROOT / "README.md", ROOT / "pyproject.toml"]:
        text = file.read_text(encoding="utf-8")
        assert not any(word in text for word in ("/work/", "/root/", "/tmp/v", "shared/")), file


SIGNSGD = '''
"""signSGD (Bernstein et al., 2018)."""

from dataclasses import dataclass

from gpt2exp.optim.base import GroupRule, Optimizer, Recipe


@dataclass(frozen=True)
class SignSGDRecipe(Recipe):
    kind: str = "signsgd"
    label: str = "signsgd"
    lr: float = 1e-3


@dataclass(frozen=True)
class SignSGDRule:
    lr: float
    slots: tuple[str, ...] = ()

    def step_scalars(self, step, lr_factor):
        return {"lr": self.lr * lr_factor}

    def update(self, ops, params, grads, slots, scalars):
        for p, g in ops.tiles(params, grads):
            ops.subtract_scaled(p, g.sign(), scalars["lr"])


def groups(recipe, n_head):
    return (GroupRule("all", lambda tensor: True, SignSGDRule(recipe.lr)),)


def check(recipe):
    return [] if recipe.lr >= 0 else [f"optimizer.lr={recipe.lr:g}: must not be negative"]


OPTIMIZER = Optimizer("signsgd", SignSGDRecipe, groups, check)
'''
SIGNSGD_YAML = "defaults: [/schema/optimizer/signsgd@_here_]\nlabel: signsgd\nlr: 2.0e-3\n"
SIGNSGD_ROW = """
import numpy as np
from harness import Row

from gpt2exp.optim.signsgd import SignSGDRecipe


def reference(recipe, weights, grads, factors):
    weights = {name: w.copy() for name, w in weights.items()}
    for grad, factor in zip(grads, factors, strict=True):
        for name in weights:
            weights[name] -= recipe.lr * factor * np.sign(grad[name])
    return weights


ROW = Row("signsgd", (SignSGDRecipe(lr=1e-2),), reference)
"""


@pytest.fixture(scope="module")
def with_signsgd(tmp_path_factory):
    """A copy of the checkout to which exactly three files were added."""
    copy = tmp_path_factory.mktemp("three_files")
    for folder in ("gpt2exp", "conf", "multirun_protocols", "tests/conformance"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "gpt2exp/optim/signsgd.py").write_text(SIGNSGD)
    (copy / "conf/optimizer/signsgd.yaml").write_text(SIGNSGD_YAML)
    (copy / "tests/conformance/signsgd.py").write_text(SIGNSGD_ROW)
    return copy


def in_copy(copy, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


def test_an_optimizer_is_three_files_and_trains(with_signsgd):
    done = in_copy(
        with_signsgd, "-m", "gpt2exp", "optimizer=signsgd", "model=tiny", "data=synthetic",
        "schedule.num_steps=40", "schedule.tokens_per_step=512", "schedule.warmup_steps=4",
        "evaluation.tokens=4096", "hydra.run.dir=run", "hardware.threads=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = done.stdout.split("final val loss ")[1]
    assert float(last.split()[0]) < float(last.split("same tokens ")[1].split(":")[0])


def test_an_optimizer_of_three_files_passes_the_conformance_table(with_signsgd):
    done = in_copy(with_signsgd, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "signsgd",
                   "tests/conformance")  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout or "[100%]" in done.stdout


def test_an_optimizer_of_three_files_appears_in_help_and_typos(with_signsgd):
    assert "signsgd" in in_copy(with_signsgd, "-m", "gpt2exp", "--help").stdout
    done = in_copy(with_signsgd, "-m", "gpt2exp", "optimizer=signsg")
    assert done.returncode == 2 and "did you mean optimizer=signsgd?" in done.stderr


def test_an_engine_without_its_form_refuses_it(monkeypatch):
    """Engines that list their optimizers refuse the others before anything starts, and name a way out."""
    from gpt2exp import rules
    from gpt2exp.compose import compose
    from gpt2exp.config import Precision
    from gpt2exp.errors import ConfigError

    limits = rules.EngineLimits((Precision.fp32,), max_devices=1, optimizers=("adamw",))
    monkeypatch.setitem(rules.ENGINES, "cpu", limits)
    with pytest.raises(ConfigError, match=r"no form of optimizer 'sgd' \(has: adamw\); use hardware=cpu"):
        compose(["optimizer=sgd"])


def test_test_files_have_names_of_their_own():
    """Folders of tests are no packages: pytest takes two files of one name for one module, and stops."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 50 and [name for name in names if names.count(name) > 1] == []
