"""Configurations: what composes, what it is, and that a recorded one comes back as it was."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import is_dataclass, replace

import pytest
from golden import cfg_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from quick import quickly

from gpt2exp.assembly import yaml_of
from gpt2exp.compose import compose, load_config
from gpt2exp.config import Config, Decay, Precision, Tokenizer, Warmup
from gpt2exp.errors import ConfigError
from gpt2exp.identity import InputRecord, identify, plain

HEAVY = ["torch", "numpy", "pandas", "scipy", "matplotlib", "weightwatcher"]
INPUTS = InputRecord(None, "corpus", "tokenizer", "order")

FITTING = {
    "model": ["data=synthetic", "schedule.context_length=16", "evaluation=off"],
    "schedule": ["model=gpt2", "data=synthetic", "evaluation=off"],
    "evaluation": ["data=synthetic", "data.val_tokens=1000000000"],
    "data": ["model=gpt2"],
    "data=shards": ["data.train=t*.bin", "data.val=v*.bin"],
    "data=text": ["data.paths=[a.txt]"],
    "preset=upstream_parity": ["data.train=t*.bin", "data.val=v*.bin"],
}
"""What makes an option a whole run, where the defaults do not."""


def options():
    return [(group, option) for group, option in cfg_job.options()]


@pytest.fixture(scope="module")
def rendered():
    return cfg_job.rendered()


@pytest.mark.parametrize("file", [cfg_job.DEFAULT, cfg_job.OPTIONS], ids=lambda file: file.name)
def test_cfg_job_is_what_the_golden_file_says(file, rendered):
    golden = file.read_bytes().decode("utf-8")
    assert rendered[file] == golden, "python tests/golden/cfg_job.py writes it again; review the diff"


def test_the_golden_default_is_what_the_command_prints(cli):
    done = cli("--cfg", "job")
    assert (done.status, done.out, done.err) == (0, cfg_job.DEFAULT.read_text(encoding="utf-8"), "")


@pytest.mark.parametrize(("group", "option"), options(), ids=lambda word: word)
def test_every_option_makes_a_whole_run(group, option):
    chosen = f"{group}={option}"
    config = compose([chosen, *FITTING.get(group, []), *FITTING.get(chosen, [])])
    assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("group", "option"),
    [pair for pair in options() if pair[0] not in ("preset", "protocol")],
    ids=lambda w: w,
)
def test_every_option_file_has_its_schema(group, option):
    node = cfg_job.composed(f"{group}={option}")[group]
    schema = OmegaConf.get_type(node)
    assert is_dataclass(schema) and set(node) == set(schema.__dataclass_fields__)


@pytest.mark.parametrize(
    "overrides",
    [["seed=7", "optimizer=sgd", "optimizer.lr=1"], ["data=text", "data.paths=[a,b]", "arm=x"]],
    ids=str,
)
def test_the_quick_way_of_these_tests_composes_the_same(overrides):
    assert quickly(*overrides) == compose(overrides)


def test_a_preset_yields_to_the_command_line():
    config = compose(["preset=nanogpt_shakespeare", "optimizer=sgd", "logging.log_every=7"])
    assert (config.optimizer.kind, config.logging.log_every, config.checkpoint.every) == ("sgd", 7, 1000)


def test_arm_and_precision_follow_their_sources_until_given():
    followed = compose(["optimizer=sgd", "hardware.default_precision=fp64"])
    assert (followed.arm, followed.precision) == ("sgd", Precision.fp64)
    given_ = compose(["optimizer=sgd", "hardware.default_precision=fp64", "arm=other", "precision=bf16"])
    assert (given_.arm, given_.precision) == ("other", Precision.bf16)


def test_composed_values_have_the_schemas_types():
    config = compose(["optimizer=adamw", "optimizer.lr=1", "data=text", "data.paths=[a,b]", "optimizer.betas=[0,0.5]"])
    assert config.data.paths == ("a", "b") and config.data.val_paths == ()
    assert config.optimizer.betas == (0.0, 0.5)
    assert type(config.optimizer.lr) is float and type(config.optimizer.betas[0]) is float


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"]], ids=" ".join)
def test_help_and_cfg_job_import_nothing_heavy(arguments, tmp_path):
    script = (
        "import atexit, sys; from gpt2exp.main import main\n"
        f"atexit.register(lambda: print('HEAVY', sorted(set({HEAVY}) & set(sys.modules))))\n"
        f"main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert list(tmp_path.iterdir()) == []


finite = {"allow_nan": False, "allow_infinity": False}
text = st.text(" \n\r\t'\"#:-?[]{}$!&*%@`|>\\,~=.e+_0179aZnué😀\ufeff\x00\x1b\u2028", max_size=12).filter(
    lambda text: "${" not in text and text != "???"
)


@st.composite
def configs(draw):
    base = quickly("optimizer=adamw", "data=text", "data.paths=[a.txt]")
    num_steps = draw(st.integers(1, 10**9))
    return replace(
        base,
        seed=draw(st.integers(0, 2**63 - 1)),
        precision=draw(st.sampled_from(Precision)),
        stop_after_steps=draw(st.none() | st.integers(1, 10**9)),
        optimizer=replace(
            base.optimizer,
            lr=draw(st.floats(0, 1, **finite)),
            betas=(draw(st.floats(0, 0.999)), draw(st.floats(0, 0.999))),
            eps=draw(st.floats(5e-324, 1, **finite)),
        ),
        schedule=replace(
            base.schedule,
            num_steps=num_steps,
            warmup_steps=draw(st.integers(0, num_steps - 1)),
            warmup=draw(st.sampled_from(Warmup)),
            decay=draw(st.sampled_from(Decay)),
            min_lr_ratio=draw(st.floats(0, 1)),
        ),
        data=replace(
            base.data,
            paths=tuple(draw(st.lists(text, min_size=1, max_size=3))),
            tokenizer=draw(st.sampled_from([Tokenizer.bytes, Tokenizer.chars])),
        ),
        sample=replace(base.sample, prompt=draw(text)),
    )


@given(configs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recorded_configuration_comes_back_as_it_was(tmp_path, config):
    (tmp_path / "config.yaml").write_text(yaml_of(config), encoding="utf-8")
    loaded = load_config(tmp_path)
    assert loaded == config
    assert identify(loaded, INPUTS, {}).digests == identify(config, INPUTS, {}).digests


def test_what_cfg_job_prints_is_a_configuration_file(tmp_path):
    file = tmp_path / "printed.yaml"
    file.write_text(cfg_job.job("optimizer=sgd", "seed=7"), encoding="utf-8")
    assert load_config(file) == compose(["optimizer=sgd", "seed=7"])


def test_a_recorded_configuration_takes_single_keys(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml_of(quickly("optimizer=adamw")), encoding="utf-8")
    changed = load_config(tmp_path, ["stop_after_steps=5", "optimizer.betas=[0.5,0.6]"])
    assert (changed.stop_after_steps, changed.optimizer.betas) == (5, (0.5, 0.6))


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (
            ["optimizer=sgd"],
            ["optimizer=sgd: a recorded run keeps its choices; set single keys, optimizer.<key>=<value>"],
        ),
        (
            ["sed=1", "seed=x", "seed"],
            [
                "unknown key sed; did you mean seed?; a recorded run takes key=value only",
                "seed=x: Value 'x' of type 'str' could not be converted to Integer",
                "seed: give it a value, seed=<value>",
            ],
        ),
        (["optimizer.lr=[1"], ["optimizer.lr=[1: "]),
    ],
    ids=lambda value: value[0],
)
def test_overrides_that_do_not_fit_a_recorded_configuration(overrides, problems, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml_of(quickly("optimizer=adamw")), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path, overrides)
    assert len(refused.value.problems) == len(problems)
    assert all(map(str.startswith, refused.value.problems, problems))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("seed: 42", "sed: 42"), "not a configuration of gpt2exp: sed: Key 'sed' not in 'Config'"),
        (("seed: 42", "seed: x"), "not a configuration of gpt2exp: seed: Value 'x' of type 'str' could not"),
        (("seed: 42", "seed: [1"), ", line "),
        (("kind: adamw", "kind: lion"), "optimizer.kind=lion: not a configuration of gpt2exp (known: adamw"),
        (("num_steps: 200", "num_steps: 0"), "schedule.num_steps=0: must be at least 1"),
        (("num_steps: 200", "num_steps: ???"), "schedule.num_steps is not set"),
        (("kind: stdlib", "kind: {a: b}"), "data.kind="),
    ],
    ids=lambda change: change[1],
)
def test_a_damaged_recorded_configuration_names_file_and_fault(change, problem, tmp_path):
    file = tmp_path / "config.yaml"
    whole = yaml_of(quickly("optimizer=adamw"))
    assert change[0] in whole
    file.write_text(whole.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path)
    (line,) = refused.value.problems
    assert line.startswith(f"{file}: ") and problem in line and "\n" not in line


@pytest.mark.parametrize(
    "content",
    [b"", b"- 1\n- 2\n", b"hello", b"optimizer: 3\ndata: 4\n", b"\x00\xff\xfe", b"a: b: c", b"{}"],
    ids=repr,
)
def test_a_file_that_is_no_configuration_is_refused(content, tmp_path):
    file = tmp_path / "other.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not a configuration of gpt2exp|not readable as YAML"):
        load_config(file)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.yaml there; expected a run directory"):
        load_config(tmp_path)


def test_plain_is_what_the_yaml_holds(tmp_path):
    config = quickly()
    assert OmegaConf.to_container(OmegaConf.create(yaml_of(config))) == plain(config)
