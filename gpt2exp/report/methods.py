"""How each number of a report was computed, one sentence each, for the page itself: docs/statistics.md says more."""

from __future__ import annotations

RUNS = (
    "Validation loss: the negative log-likelihood of every target token of the evaluation, summed in float64 and "
    "divided by their number; nats a token. Final: after the last step of the budget.",
    "Token error: the share of the same target tokens that are not the model's most probable token.",
    "Elapsed time: the recorded seconds of all phases of the kept trajectory (data, update, read-back, evaluation, "
    "waiting, tracking, checkpoints). What was lost to an interruption and done again counts once.",
    "Digests: SHA256; 12 digits of them are shown, all of them are in the CSVs.",
)
PAIRS = (
    "Difference: the first arm minus the second, of the same seed. A pair needs equal initial weights and an equal "
    "data order, by their digests.",
    "Incomplete pairs: one pair without a finite value leaves the whole comparison without a statistic, because "
    "dropping it would choose the sample by its outcome.",
    "SD: n - 1 in the denominator.",
    "t interval and paired t test: mean(d) ± t(0.975, n - 1) sd(d) / √n (Student 1908), exact if the differences "
    "are normally distributed.",
    "Exact sign-flip test: the share of all 2ⁿ assignments of signs to the differences whose mean is at least as "
    "far from 0 (Fisher 1935). Its floor is 2 / 2ⁿ: with three pairs, 0.25.",
    "Minimum detectable effect: the true difference at which the two-sided 5 % t test has a power of 80 %, by the "
    "noncentral t distribution with the SD seen here; its range is over that SD's own 95 % interval.",
    "Correlation: Pearson's, between the arms over seeds.",
    "Bootstrap: expanded percentile interval of the mean difference (Hesterberg 2015), none below eight pairs, "
    "where it would cover too little.",
    "Verdicts: the primary endpoint, declared before the first run, is judged by its own p at 5 %; all others after "
    "Holm's (1979) adjustment among themselves. Too few pairs for an exact test to reach 5 % are not judged at all.",
)
REACHING = (
    "Time to the target: a crossing is known only to lie between two evaluations, and a run that never crossed is "
    "censored at its last one. The restricted mean is the area under the Kaplan-Meier (1958) curve up to the common "
    "horizon, with every crossing at either end of its interval; it is never an average over the runs that got there.",
    "Which arm was first: decided only where the two intervals do not overlap; the sign test is over decided pairs.",
)
FIGURES = (
    "Figures: a thin line is one run. A band is the range over the seeds of one arm, nothing else; it is not an "
    "interval for the mean.",
)
