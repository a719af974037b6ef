from __future__ import annotations

import contextlib
import hashlib
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2exp.config import Order
from gpt2exp.data.shards import write_shard
from gpt2exp.data.windows import TokenStream, TrainingWindows, Window, evaluation_windows
from gpt2exp.errors import ConfigError, DataError

quick = settings(deadline=None, max_examples=60)
FINEWEB_LENGTHS = (100_000_000,) * 102 + (55_324_043,)
W = 524_288


def counting_stream(*lengths: int) -> TokenStream:
    """Parts whose tokens count 0, 1, 2, ... over all parts, so that a token tells its position."""
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    return TokenStream(tuple(np.split(tokens, np.cumsum(lengths)[:-1])))


def length_only_stream(*lengths: int) -> TokenStream:
    """Parts of the right lengths that occupy no memory."""
    return TokenStream(tuple(np.broadcast_to(np.uint16(7), (length,)) for length in lengths))


class LoaderSimulation:
    """What llm.c's loader does, one process: walk a shard in windows of B*T, then go to the next shard."""

    def __init__(self, parts, rows, context):
        self.parts, self.rows, self.context = parts, rows, context
        self.shard, self.position = 0, 0

    def next(self):
        size = self.rows * self.context
        tokens = self.parts[self.shard].astype(np.int64)
        taken = tokens[self.position : self.position + size + 1]
        self.position += size
        if self.position + size + 1 > len(tokens):
            self.shard, self.position = (self.shard + 1) % len(self.parts), 0
        return taken[:-1].reshape(self.rows, self.context), taken[1:].reshape(self.rows, self.context)


def simulated_step(loader: LoaderSimulation, windows: int) -> Window:
    inputs, targets = zip(*(loader.next() for _ in range(windows)), strict=True)
    return Window(np.concatenate(inputs), np.concatenate(targets))


def assert_same(found: Window, expected: Window) -> None:
    np.testing.assert_array_equal(found.inputs_NT, expected.inputs_NT)
    np.testing.assert_array_equal(found.targets_NT, expected.targets_NT)


lengths_of_parts = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@quick
@given(lengths_of_parts, st.data())
def test_a_stream_reads_like_one_long_array(lengths, data):
    stream = counting_stream(*lengths)
    start = data.draw(st.integers(0, stream.num_tokens))
    count = data.draw(st.integers(0, stream.num_tokens - start))
    tokens = stream.read(start, count)
    assert tokens.dtype == np.int64
    np.testing.assert_array_equal(tokens, np.arange(start, start + count))


def test_reading_beyond_a_stream_is_a_programming_error():
    with pytest.raises(AssertionError, match="beyond"):
        counting_stream(5, 5).read(6, 5)


@quick
@given(lengths_of_parts, st.integers(1, 4), st.integers(1, 4), st.integers(0, 50))
def test_sequential_step_u_is_tokens_uW_to_uW_plus_W(lengths, rows, context, u):
    stream, step = counting_stream(*lengths), rows * context
    if stream.num_tokens < step + 1:
        with pytest.raises(DataError):
            TrainingWindows(stream, Order.exact_sequential, step, context)
        return
    windows = TrainingWindows(stream, Order.exact_sequential, step, context)
    assert windows.horizon == (stream.num_tokens - 1) // step
    first = u % windows.horizon * step
    expected = np.arange(first, first + step + 1)
    window = windows.window(u)
    assert window.inputs_NT.shape == window.targets_NT.shape == (rows, context)
    np.testing.assert_array_equal(window.inputs_NT.ravel(), expected[:-1])
    np.testing.assert_array_equal(window.targets_NT.ravel(), expected[1:])


def test_windows_are_fresh_contiguous_int64():
    stream = counting_stream(50)
    windows = TrainingWindows(stream, Order.exact_sequential, 8, 4)
    first, again = windows.window(0), windows.window(0)
    for array in (first.inputs_NT, first.targets_NT):
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not np.shares_memory(array, stream.parts[0])
        assert not np.shares_memory(array, again.inputs_NT)


@quick
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_upstream_walk_equals_a_simulated_loader(extra, rows, context, windows_per_step):
    span = rows * context
    stream = counting_stream(*(span + length for length in extra))
    windows_in_all = sum((length - 1) // span for length in stream.lengths)
    step = span * windows_per_step
    if windows_in_all < windows_per_step:
        with pytest.raises(DataError):
            TrainingWindows(stream, Order.upstream_python, step, context, span)
        return
    windows = TrainingWindows(stream, Order.upstream_python, step, context, span)
    assert windows.horizon == windows_in_all // windows_per_step
    loader = LoaderSimulation(stream.parts, rows, context)
    for u in range(2 * windows.horizon + 3):
        assert_same(windows.window(u), simulated_step(loader, windows_per_step))


def test_any_step_can_be_read_first():
    def build():
        return TrainingWindows(counting_stream(30, 41, 29), Order.upstream_python, 16, 4, 8)

    in_order = [build().window(u) for u in range(20)]
    windows = build()
    for u in reversed(range(20)):
        assert_same(windows.window(u), in_order[u])


def test_window_tokens_default_to_the_step():
    stream = counting_stream(30, 41)
    by_default = TrainingWindows(stream, Order.upstream_python, 8, 4)
    explicit = TrainingWindows(stream, Order.upstream_python, 8, 4, 8)
    assert by_default.order_digest == explicit.order_digest
    assert_same(by_default.window(5), explicit.window(5))


def test_fineweb10B_has_19560_sequential_steps():
    stream = length_only_stream(*FINEWEB_LENGTHS)
    assert stream.num_tokens == 10_255_324_043
    windows = TrainingWindows(stream, Order.exact_sequential, W, 1024)
    assert windows.horizon == 19_560
    assert windows.window(19_559).inputs_NT.shape == (512, 1024)


@pytest.mark.parametrize(
    ("window_tokens", "updates_per_epoch", "million_dropped"),
    [
        (524_288, 19_485, 39.57),
        (262_144, 19_536.5, 12.57),
        (65_536, 19_549.25, 5.89),
        (4_096, 19_560.4, 0.03),
    ],
)
def test_fineweb10B_epoch_of_the_upstream_walk(window_tokens, updates_per_epoch, million_dropped):
    stream = length_only_stream(*FINEWEB_LENGTHS)
    micro = TrainingWindows(stream, Order.upstream_python, window_tokens, 1024, window_tokens)
    assert micro.horizon * window_tokens / W == pytest.approx(updates_per_epoch, abs=0.05)
    assert (stream.num_tokens - micro.horizon * window_tokens) / 1e6 == pytest.approx(million_dropped, abs=0.005)
    updates = TrainingWindows(stream, Order.upstream_python, W, 1024, window_tokens)
    assert updates.horizon == int(updates_per_epoch)


def test_fineweb10B_orders_part_at_update_190():
    numbered = TokenStream(tuple(np.broadcast_to(np.uint16(i), (length,)) for i, length in enumerate(FINEWEB_LENGTHS)))
    sequential = TrainingWindows(numbered, Order.exact_sequential, W, 1024)
    upstream = TrainingWindows(numbered, Order.upstream_python, W, 1024, W)
    assert_same(upstream.window(189), sequential.window(189))
    assert (upstream.window(190).inputs_NT == 1).all()
    assert (sequential.window(190).inputs_NT[0] == 0).all()
    assert (upstream.window(19_484).inputs_NT == 102).all()
    assert (upstream.window(19_485).inputs_NT == 0).all()


def test_order_digest_tells_orders_apart_and_stays():
    stream = counting_stream(100, 100)
    variants = [
        TrainingWindows(stream, Order.exact_sequential, 16, 4),
        TrainingWindows(stream, Order.exact_sequential, 32, 4),
        TrainingWindows(stream, Order.exact_sequential, 16, 8),
        TrainingWindows(stream, Order.upstream_python, 16, 4),
        TrainingWindows(stream, Order.upstream_python, 16, 4, 8),
        TrainingWindows(counting_stream(99, 101), Order.exact_sequential, 16, 4),
    ]
    assert len({windows.order_digest for windows in variants}) == len(variants)
    text = (
        '{"context_length":4,"order":"exact_sequential","part_lengths":[100,100],'
        '"tokens_per_step":16,"window_tokens":16}'
    )
    assert json.loads(text)
    assert variants[0].order_digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("order", "step", "context", "window_tokens", "named"),
    [
        (Order.exact_sequential, 10, 4, None, "tokens_per_step=10"),
        (Order.exact_sequential, 0, 4, None, "tokens_per_step=0"),
        (Order.exact_sequential, 16, 4, 8, "window_tokens=8"),
        (Order.upstream_python, 16, 4, 12, "window_tokens=12"),
        (Order.upstream_python, 16, 4, 2, "window_tokens=2"),
        (Order.upstream_python, 16, 4, 0, "window_tokens=0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(order, step, context, window_tokens, named):
    with pytest.raises(ConfigError, match=named):
        TrainingWindows(counting_stream(100), order, step, context, window_tokens)


@pytest.mark.parametrize("tokens", [14, 16])
def test_a_shard_below_one_upstream_window_names_what_fits(tokens):
    parts = (np.zeros(100, np.uint16), np.zeros(tokens, np.uint16))
    stream = TokenStream(parts, ("a_000001.bin", "a_000002.bin"))
    with pytest.raises(DataError, match=rf"a_000002\.bin has {tokens} tokens.* 17 .*at most 12"):
        TrainingWindows(stream, Order.upstream_python, 16, 4)
    assert TrainingWindows(stream, Order.upstream_python, 12, 4).horizon == 9
    assert TrainingWindows(stream, Order.exact_sequential, 16, 4).horizon == (99 + tokens) // 16


def test_a_shard_of_exactly_one_upstream_window_is_enough():
    stream = TokenStream((np.zeros(17, np.uint16),) * 2)
    assert TrainingWindows(stream, Order.upstream_python, 16, 4).horizon == 2


@quick
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 9))
def test_evaluation_covers_exactly_the_first_tokens(total_rows, context, rows):
    tokens = total_rows * context
    windows = list(evaluation_windows(counting_stream(3, tokens - 2), tokens, context, rows))
    assert all(window.inputs_NT.shape == window.targets_NT.shape for window in windows)
    assert all(len(window.inputs_NT) == rows for window in windows[:-1])
    assert 1 <= len(windows[-1].inputs_NT) <= rows
    inputs = np.concatenate([window.inputs_NT for window in windows])
    targets = np.concatenate([window.targets_NT for window in windows])
    np.testing.assert_array_equal(inputs.ravel(), np.arange(tokens))
    np.testing.assert_array_equal(targets, inputs + 1)


def test_evaluation_refuses_more_than_the_split_before_reading():
    with pytest.raises(DataError, match=r"needs 13 tokens.*has 12.*at most 8"):
        evaluation_windows(counting_stream(12), 12, 4, 1)
    with pytest.raises(ConfigError, match=r"evaluation\.tokens=10"):
        evaluation_windows(counting_stream(12), 10, 4, 1)


def upstream_ranks(loader_class, pattern, rows, context, ranks):
    with contextlib.redirect_stdout(io.StringIO()):
        return [loader_class(str(pattern), rows, context, rank, ranks) for rank in range(ranks)]


@pytest.mark.upstream
@pytest.mark.parametrize("ranks", [1, 2])
def test_upstream_walk_equals_upstreams_own_loader(upstream_loader, tmp_path, make_tokens, ranks):
    rows, context = 2, 8
    span = rows * context * ranks
    lengths = [5 * span + 1, 3 * span + span - 1, 2 * span + span // 2 + 2]
    parts = tuple(make_tokens(length, seed=i) for i, length in enumerate(lengths))
    for i, tokens in enumerate(parts):
        write_shard(tmp_path / f"x_train_{i + 1:06d}.bin", tokens)
    if ranks == 2:  # remainders that keep both ranks together; the next test shows the others
        lengths[0] = 5 * span + span // 2 + 1
        parts = (make_tokens(lengths[0], seed=0), *parts[1:])
        write_shard(tmp_path / "x_train_000001.bin", parts[0])
    loaders = upstream_ranks(upstream_loader, tmp_path / "x_train_*.bin", rows, context, ranks)
    ours = TrainingWindows(TokenStream(parts), Order.upstream_python, 2 * span, context, span)
    for u in range(14):
        batches = [[loader.next_batch() for loader in loaders] for _ in range(2)]
        inputs = np.concatenate([x.numpy() for batch in batches for x, _ in batch])
        targets = np.concatenate([y.numpy() for batch in batches for _, y in batch])
        assert_same(ours.window(u), Window(inputs, targets))


@pytest.mark.upstream
def test_upstreams_later_ranks_leave_a_shard_early(upstream_loader, tmp_path, make_tokens):
    rows, context, ranks = 2, 8, 2
    span = rows * context * ranks
    parts = tuple(make_tokens(3 * span + 1, seed=i) for i in range(2))
    for i, tokens in enumerate(parts):
        write_shard(tmp_path / f"x_train_{i + 1:06d}.bin", tokens)
    loaders = upstream_ranks(upstream_loader, tmp_path / "x_train_*.bin", rows, context, ranks)
    ours = TrainingWindows(TokenStream(parts), Order.upstream_python, span, context, span)
    agree = []
    for u in range(3):
        expected = np.split(ours.window(u).inputs_NT, ranks)
        found = [loader.next_batch()[0].numpy() for loader in loaders]
        agree.append([bool((a == b).all()) for a, b in zip(found, expected, strict=True)])
    assert agree == [[True, True], [True, True], [True, False]]
