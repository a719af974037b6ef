"""What a user's mistakes on the command line give: one line a problem, the right status, nothing on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from omegaconf import OmegaConf

from gpt2exp import command_line
from gpt2exp.compose import compose, hydra_ready
from gpt2exp.explain import Explainer
from gpt2exp.identity import flatten, plain
from gpt2exp.schemas import CONFIG_NAME
from gpt2exp.suggest import did_you_mean, nearest

CONSOLE_SCRIPT = Path(sys.executable).with_name("gpt2exp")
OPTIMIZERS = ", ".join(command_line.groups()["optimizer"])
MODELS = ", ".join(command_line.groups()["model"])

COMPOSING = {
    "seed=1 ++seed=2": ["seed is given 2 times: give it once"],
    "+zzz=1": ["unknown key zzz"],
    "optimizr=adamw": ["unknown key optimizr; did you mean optimizer?"],
    "~seed": ["seed is not set: give seed=<value>"],
    "seed=abc": ["seed=abc: expected an integer"],
    "optimizer.lr=nan": ["optimizer.lr=nan: must be finite"],
    "optimizer=adamww": [
        f"optimizer=adamww: no such option (has: {OPTIMIZERS}); did you mean optimizer=adamw?"
    ],
    "optimizer=null": [f"optimizer=null: no such option (has: {OPTIMIZERS})"],
    "~optimizer": ["optimizer is not set: give optimizer=<value>"],
    "optimizer=sgd optimizer=adamw": ["optimizer is given 2 times: give it once"],
    "hydra.run.dir=a hydra.run.dir=b": ["hydra.run.dir is given 2 times: give it once"],
    "protocol=three_seeds": ["protocol=three_seeds is a multirun: add -m (gpt2exp -m protocol=three_seeds)"],
    "data=text": ["data.paths is not set: give data.paths=<value>"],
    "seed==3": [
        "'seed==3' cannot be read: quote text twice, once for the shell and once for Hydra: 'seed=\"=3\"'"
    ],
    "seed=1,2": ["seed=1,2: several values need -m; one value with a comma needs quotes"],
    "arm=${hydra:job.num}": ["arm=${hydra:job.num}: only hydra.* keys may use ${hydra:...}"],
    "optimizer.lr=fast seed=abc modle=nano optimizer=adamww +zzz=1 data=text": [
        f"optimizer=adamww: no such option (has: {OPTIMIZERS}); did you mean optimizer=adamw?",
        "optimizer.lr=fast: expected a number",
        "seed=abc: expected an integer",
        "unknown key modle; did you mean model?",
        "unknown key zzz",
        "data.paths is not set: give data.paths=<value>",
    ],
    "hydra.output_subdir=x": [
        "hydra.output_subdir=x: a run keeps its own config.yaml and needs an empty directory; leave it null"
    ],
    "hydra.job.chdir=true": [
        "hydra.job.chdir=true: paths are read from where gpt2exp was started; leave it false"
    ],
    "hydra.run.dir=${nosuch}": ["hydra.run.dir: Interpolation key 'nosuch' not found"],
}  # fmt: skip
"""Mistakes that Hydra or the gate meets, taken through the whole command."""

SORTING = {
    "--lr 3": ["--lr: gpt2exp takes overrides, not flags; write optimizer.lr=3"],
    "--learning_rate=3e-4": [
        "--learning_rate=3e-4: gpt2exp takes overrides, not flags; write optimizer.lr=3e-4"
    ],
    "--max-iters 4 --batch_size=2": [
        "--max-iters: gpt2exp takes overrides, not flags; write schedule.num_steps=4",
        "--batch_size=2: gpt2exp takes overrides, not flags; write hardware.micro_batch_size=2",
    ],
    "--beta2 0.99": ["--beta2: gpt2exp takes overrides, not flags; write 'optimizer.betas=[<beta1>,0.99]'"],
    "--seed 3": ["--seed: gpt2exp takes overrides, not flags; write seed=3"],
    "--optimizer=sgd": ["--optimizer=sgd: gpt2exp takes overrides, not flags; write optimizer=sgd"],
    "--schedule.num_steps 5 seed=3": [
        "--schedule.num_steps: gpt2exp takes overrides, not flags; write schedule.num_steps=5"
    ],
    "--lr --wandb": [
        "--lr: gpt2exp takes overrides, not flags; write optimizer.lr=<value>",
        "--wandb: unknown flag; settings are written key=value (gpt2exp --help)",
    ],
    "--multi": [
        "--multi: unknown flag; did you mean --multirun?; settings are written key=value (gpt2exp --help)"
    ],
    "-x": ["-x: unknown flag; settings are written key=value (gpt2exp --help)"],
    "--": ["--: unknown flag; settings are written key=value (gpt2exp --help)"],
    "-m=1": ["--multirun=1: takes no value"],
    "--cfg": ["--cfg: choose one of job, hydra, all"],
    "--cfg jobs": ["--cfg jobs: choose one of job, hydra, all"],
    "--info nothing": [
        "--info nothing: choose one of all, config, defaults, defaults-tree, plugins, searchpath"
    ],
    "-cn": ["--config-name: needs a value"],
    "-cd nowhere": ["--config-dir nowhere: no such folder"],
    "-cp x": [
        "-cp: gpt2exp's own configuration stays; add a folder of yours with -cd DIR [-cn NAME]",
    ],
    "--resolve": ["The --resolve flag can only be used in conjunction with --cfg or --help"],
    "-m --cfg job": [
        "Only one of --run, --multirun, --cfg, --info and --shell_completion can be specified"
    ],
    "-sc": ["--shell-completion: Expecting one subcommand from ['install', 'uninstall', 'query'] to be set"],
    "train": ["'train': training takes no verb: gpt2exp [group=option ...] [key=value ...]"],
    "seed": ["'seed' is neither a verb nor key=value (gpt2exp --help lists both)"],
    "sdg": ["'sdg' is neither a verb nor key=value; did you mean optimizer=sgd? (gpt2exp --help lists both)"],
    "stats x": [
        "'stats' is neither a verb nor key=value; did you mean status? (gpt2exp --help lists both)",
        "'x' is neither a verb nor key=value (gpt2exp --help lists both)",
    ],
    "seed=3 status": ["'status' is a verb and comes first: gpt2exp status ..."],
    "diff": ["found 0 arguments. Usage: gpt2exp diff A B"],
    "status --all": ["unknown flag --all. Usage: gpt2exp status DIR"],
}  # fmt: skip
"""Flags and words: refused before Hydra is imported."""

OVERRIDES = {
    # keys
    "optimizer.lrr=1": ["unknown key optimizer.lrr; did you mean optimizer.lr?"],
    "+optimizer.lrr=1": ["unknown key optimizer.lrr; did you mean optimizer.lr?"],
    "++optimizer.lrr=1": ["unknown key optimizer.lrr; did you mean optimizer.lr?"],
    "+zzz={a:1}": ["unknown key zzz"],
    "+optimizr=adamw": ["unknown key optimizr; did you mean optimizer?"],
    "+protocl=three_seeds": ["unknown key protocl; did you mean protocol?"],
    "optimizer=sgd optimizer.betas=[0.9,0.9]": ["unknown key optimizer.betas; did you mean optimizer.label?"],
    "learning_rate=1": ["unknown key learning_rate"],
    "lr=1": ["unknown key lr; did you mean optimizer.lr?"],
    "+seed=1": ["+seed=1: seed exists already; write seed=1"],
    "~optimizer.lr": ["~optimizer.lr: a key cannot be removed; give it another value"],
    "hydra.run.dirr=x": ["unknown key hydra.run.dirr; did you mean hydra.run.dir?"],
    # types
    "seed=": ["seed=: expected an integer"],
    "seed=null": ["seed=null: expected an integer"],
    "seed=true": ["seed=true: expected an integer"],
    "seed=1.5": ["seed=1.5: expected an integer"],
    "seed=nan": ["seed=nan: expected an integer"],
    "seed=[1]": ["seed=[1]: expected an integer"],
    "schedule.num_steps=1e3": ["schedule.num_steps=1e3: expected an integer"],
    "hardware.threads=x": ["hardware.threads=x: expected an integer or null"],
    "optimizer.lr=fast": ["optimizer.lr=fast: expected a number"],
    "optimizer.lr=true": ["optimizer.lr=true: expected a number"],
    "optimizer.lr=": ["optimizer.lr=: expected a number"],
    "optimizer.lr=null": ["optimizer.lr=null: expected a number"],
    "model.bias=maybe": ["model.bias=maybe: expected true or false"],
    "precision=fp16": ["precision=fp16: expected one of fp32, fp64, bf16"],
    "schedule.decay=cos": ["schedule.decay=cos: expected one of cosine, linear, constant"],
    "optimizer=adamw optimizer.betas=0.9": ["optimizer.betas=0.9: expected a list of numbers, '[a,b]'"],
    "optimizer=adamw optimizer.betas=[a,b]": ["optimizer.betas=[a,b]: expected a list of numbers, '[a,b]'"],
    "optimizer=adamw optimizer.betas=[0.9,true]": ["optimizer.betas=[0.9,true]: expected a list of numbers, '[a,b]'"],
    "data=text data.paths=a.txt": ["data.paths=a.txt: expected a list of texts, '[a,b]'"],
    "checkpoint=3": ["checkpoint=3: expected its keys one by one (this is a group of keys, not a value)"],
    "schedule={lrr:3}": ["schedule={lrr:3}: schedule.lrr: Key 'lrr' not in 'ScheduleConfig'"],
    # choices
    "optimizer='adamww'": [
        f"optimizer='adamww': no such option (has: {OPTIMIZERS}); did you mean optimizer=adamw?"
    ],
    "optimizer=": [f"optimizer=: no such option (has: {OPTIMIZERS})"],
    "model=3": [f"model=3: no such option (has: {MODELS})"],
    "model=[1,2]": [f"model=[1,2]: no such option (has: {MODELS})"],
    "+optimizer=sgd": ["+optimizer=sgd: write optimizer=sgd, without '+'"],
    "++optimizer=sgd": ["++optimizer=sgd: write optimizer=sgd, without '+'"],
    "hydra/launcher=basc": [
        "hydra/launcher=basc: no such option (has: basic); did you mean hydra/launcher=basic?"
    ],
    "hydra/nothing=x": ["unknown group hydra/nothing"],
    # missing
    "data=shards": [
        "data.train is not set: give data.train=<value>",
        "data.val is not set: give data.val=<value>",
    ],
    # grammar
    "=3": ["'=3' cannot be read: write key=value"],
    "data.paths=[ä]": [
        "'data.paths=[ä]' cannot be read: quote text twice, once for the shell and once for Hydra: "
        "'data.paths=[\"text\",\"text\"]'"
    ],
    "data.paths=[a": [
        "'data.paths=[a' cannot be read: quote text twice, once for the shell and once for Hydra: "
        "'data.paths=[\"text\",\"text\"]'"
    ],
    "seed=range(3)": ["seed=range(3): several values need -m; one value with a comma needs quotes"],
    # interpolations
    "optimizer.lr=${nosuch}": ["optimizer.lr=${nosuch}: Interpolation key 'nosuch' not found"],
    "seed=${oc.env:NOT_SET_ANYWHERE}": [
        "seed=${oc.env:NOT_SET_ANYWHERE}: KeyError raised while resolving interpolation: "
        "\"Environment variable 'NOT_SET_ANYWHERE' not found\""
    ],
    "sample.prompt=\\${x}": ["sample.prompt=${x}: '${' cannot be recorded"],
    # all at once
    "hydra.run.dir=x hydra.job.chdir=true hydra.mode=RUN seed=abc": ["seed=abc: expected an integer"],
    "seed=1 seed=x +zzz=nan data=text": [
        "seed is given 2 times: give it once",
        "seed=x: expected an integer",
        "unknown key zzz",
        "data.paths is not set: give data.paths=<value>",
    ],
    # Hydra's own settings
    "hydra.run.dir=null": ["hydra.run.dir=null: expected text"],
}  # fmt: skip
"""More of what overrides may hold; the words are the same whoever composes."""


@pytest.mark.parametrize("arguments", [*COMPOSING, *SORTING])
def test_a_mistake_is_one_line_a_problem_and_leaves_nothing(arguments, cli, tmp_path):
    done = cli(*arguments.split(" "))
    assert done.problems == {**COMPOSING, **SORTING}[arguments]
    assert (done.status, done.out) == (2, "")
    assert all(line.startswith("gpt2exp: ") for line in done.err.splitlines())
    assert list(tmp_path.iterdir()) == []


@cache
def composed(config_name, overrides):
    return hydra_compose(config_name, overrides=list(overrides), return_hydra_config=True)


@pytest.mark.parametrize("overrides", OVERRIDES)
def test_a_mistake_in_an_override_is_one_line_a_problem(overrides, monkeypatch):
    monkeypatch.setattr(
        "gpt2exp.explain.hydra_compose", lambda name, overrides, **_: composed(name, tuple(overrides)).copy()
    )
    with hydra_ready():
        problems = Explainer(CONFIG_NAME).explain(overrides.split(" "), AssertionError("nothing found"))
    assert problems == OVERRIDES[overrides]


@pytest.mark.parametrize("arguments", ["seed=x", "optimizer=null", "-m seed=1,x"])
def test_hydras_full_error_shows_no_traceback_for_a_users_mistake(arguments, cli, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    done = cli(*arguments.split())
    assert done.status == 2 and len(done.problems) == 1 and "Traceback" not in done.err


def test_a_value_with_a_line_break_stays_one_line(cli):
    done = cli('arm="a\nb"')
    assert done.status == 2 and len(done.problems) == 1


def test_a_very_long_value_stays_one_line(cli, tmp_path):
    done = cli(f"arm={'a' * 5000}")
    assert done.status == 2 and len(done.problems) == 1
    assert list(tmp_path.iterdir()) == []


def test_every_hint_for_another_trainers_flag_is_a_real_key():
    config = compose(["data=shards", "data.train=a", "data.val=b", "model=gpt2"])
    real = {*flatten(plain(config)), *command_line.groups(), "optimizer.betas", "hydra.run.dir"}
    for form in command_line.OTHER_TRAINERS_FLAGS.values():
        keys = re.findall(r"([a-z_.]+)=", form)
        assert keys and set(keys) <= real, form


# flags


def test_flags_may_stand_anywhere_and_in_both_forms():
    for arguments in (
        ["-m", "seed=1", "-cn=x", "--cfg", "job"],
        ["seed=1", "--cfg=job", "-m", "--config-name", "x"],
    ):
        command = command_line.parse(arguments)
        assert command.overrides == ("seed=1",) and command.multirun
        assert command.value("--config-name") == "x" and command.value("--cfg") == "job"
        assert command.value("--config-dir") is None
        assert command.for_hydra[-1] == "seed=1" and set(command.for_hydra[:-1]) == set(command.flags)


def test_a_flags_value_may_look_like_an_override_only_for_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert command_line.parse(["-cd", "a=b"]).value("--config-dir") == "a=b"
    assert command_line.parse(["-i", "seed=1"]).flags == ("--info=all",)


def test_overrides_before_a_flag_reach_hydra(cli):
    done = cli("seed=7", "--cfg", "job", "optimizer=sgd", "-p", "seed")
    assert (done.status, done.out) == (0, "7\n")


@pytest.mark.parametrize("arguments", ["--help", "-h", "seed=3 --help", "-m -h"])
def test_help_is_ours_and_lists_what_is_there(arguments, cli):
    done = cli(*arguments.split())
    assert done.status == 0 and done.err == ""
    for group, options in command_line.groups().items():
        assert f"  {group:<11} {' | '.join(options)}\n" in done.out
    for verb in command_line.verbs():
        assert f"\n  {verb} " in done.out
    for title in ("Usage", "Examples", "Groups", "Verbs", "Exit status"):
        assert f"\n{title}\n" in done.out
    assert "powered by Hydra" not in done.out


def test_the_examples_of_help_compose(cli, tmp_path):
    (tmp_path / "notes").mkdir()
    lines = command_line.help_text().split("Examples\n")[1].split("\n\n")[0].splitlines()
    examples = [line.strip().split("  ")[0].strip() for line in lines]
    for example in examples:
        words = [word.strip("'") for word in example.split()[1:]]
        if example.startswith("gpt2exp") and "-m" not in words and "--cfg" not in words:
            compose(words)
    assert len(examples) >= 5


@pytest.mark.parametrize("verb", command_line.verbs())
def test_every_verb_has_help(verb, cli):
    done = cli(verb, "--help")
    assert done.status == 0 and f"usage: gpt2exp {verb}" in done.out.replace("Usage", "usage")


def test_version(cli):
    import gpt2exp

    assert cli("--version").out == f"gpt2exp {gpt2exp.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--hydra-help", "Hydra"),
        ("--cfg hydra -p hydra.sweeper.max_batch_size", "1"),
        ("--cfg job --resolve -p arm optimizer=sgd", "sgd"),
    ],
)
def test_hydras_own_flags_work(arguments, expected, cli, tmp_path):
    done = cli(*arguments.split())
    assert done.status == 0 and expected in done.out
    assert list(tmp_path.iterdir()) == []


# completion


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("gpt2exp ", {"optimizer=", "data=", "protocol=", "schedule.", "seed="}, set()),
        ("gpt2exp optimizer=", {"optimizer=adamw", "optimizer=sgd"}, {"optimizer=muon_that_is_not_there"}),
        ("gpt2exp optimizer=sgd optimizer.mo", {"optimizer.momentum="}, {"optimizer.lr="}),
        ("gpt2exp -m protocol=th", {"protocol=three_seeds"}, {"protocol="}),
        ("gpt2exp seed=1 schedule.num", {"schedule.num_steps="}, set()),
    ],
)
def test_completion_offers_groups_options_and_keys(line, offered, not_offered, cli, monkeypatch):
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    done = cli("-sc", "query=bash")
    words = set(done.out.split())
    assert done.status == 0 and offered <= words and not not_offered & words


@pytest.mark.skipif(not CONSOLE_SCRIPT.exists() or os.name == "nt", reason="no console script beside python")
def test_completion_installs_into_bash_from_the_console_script(tmp_path):
    script = (
        'eval "$(gpt2exp -sc install=bash)"\n'
        'COMP_LINE="gpt2exp optimizer=s"; COMP_POINT=${#COMP_LINE}; COMP_CWORD=1\n'
        'hydra_bash_completion 2>/dev/null; complete -p gpt2exp; echo "[${COMPREPLY[@]}]"'
    )
    path = f"{CONSOLE_SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert "-F hydra_bash_completion gpt2exp" in done.stdout
    assert "[optimizer=sgd]" in done.stdout, done.stdout + done.stderr


# a user's own folder


@pytest.fixture
def my_folder(tmp_path):
    folder = tmp_path / "my"
    (folder / "optimizer").mkdir(parents=True)
    files = {
        "mine.yaml": "defaults:\n  - config\n  - _self_\nseed: 7\n",
        "alone.yaml": "seed: 7\n",
        "broken.yaml": "defaults: [config\nseed: : 7\n",
        "badkey.yaml": "defaults:\n  - config\n  - _self_\nsed: 7\n",
        "optimizer/gentle.yaml": "defaults: [adamw]\nlabel: gentle\nlr: 0.0001\n",
        "optimizer/badvalue.yaml": "defaults: [/schema/optimizer/adamw@_here_]\nlr: fast\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_users_configuration_and_option_compose(my_folder, cli):
    done = cli("-cd", "my", "-cn", "mine", "optimizer=gentle", "--cfg", "job")
    printed = OmegaConf.create(done.out)
    assert (done.status, printed.seed, printed.optimizer.lr) == (0, 7, 1e-4)


MY_MISTAKES = {
    "-cd my optimizer=gentl": "did you mean optimizer=gentle?",
    "-cd my -cn mine sed=3": "unknown key sed; did you mean seed?",
    "-cd my -cn mine -m optimizer=gentle,gentl": "did you mean optimizer=gentle? (run optimizer=gentl)",
    "hydra.searchpath=[file://my] optimizer=gentl": "did you mean optimizer=gentle?",
    "-cd my -cn badkey": "In 'badkey': Key 'sed' not in 'Config' (sed)",
    "-cd my optimizer=badvalue": "In 'optimizer/badvalue': Value 'fast' of type 'str' could not be converted",
    "-cd my -cn broken": "broken.yaml, line 2: not readable as YAML:",
    "-cd my -cn nosuch": "Cannot find primary config 'nosuch'",
}


@pytest.mark.parametrize("arguments", MY_MISTAKES)
def test_mistakes_in_a_users_folder_are_one_line(arguments, my_folder, cli, tmp_path):
    done = cli(*arguments.split())
    (line,) = done.problems
    assert MY_MISTAKES[arguments] in line and done.status == 2
    assert list(tmp_path.iterdir()) == [my_folder]


def test_a_configuration_that_is_not_built_on_ours_is_refused(my_folder, cli):
    done = cli("-cd", "my", "-cn", "alone")
    assert done.status == 2
    assert done.problems == ["not built on gpt2exp's configuration: start the defaults list with '- config'"]


# hints


def test_the_nearest_name_wins_and_a_far_one_gives_no_hint():
    assert nearest("optimizr", ["optimizer", "seed"]) == "optimizer"
    assert nearest("lr", ["seed", "optimizer.lr"]) == "optimizer.lr"
    assert nearest("zzz", ["optimizer", "seed"]) is None
    assert did_you_mean("adamww", ["adamw", "sgd"], prefix="optimizer=") == "; did you mean optimizer=adamw?"
    assert did_you_mean("zzz", ["adamw", "sgd"]) == ""


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["status", "."]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(arguments, tmp_path):
    for number in range(300):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        (folder / "run.json").write_text("{}")
    with subprocess.Popen(
        [sys.executable, "-m", "gpt2exp", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr.read() == b""
