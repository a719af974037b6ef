"""The bound that proves no head can clip against the block's own forward and backward."""

from __future__ import annotations

from benchmarking import Benchmark, Measurement, Reach, Settings
from qk_observation import observation_share

from gpt2exp.optim.qk_clip import upper_bound


def measure(settings: Settings) -> Measurement:
    """T = 1,024, 12 heads of 64."""
    return observation_share(settings, upper_bound)


ROW = Benchmark("QK bound of one block, T = 1,024", "forward + backward of the block", Reach(0.005), measure)
