"""The GPT as tables: each statement is a query over the statements before it, the weights and the batch.

Read in order they are the definition of the model (Radford et al., 2019). Rows are (b, pos): row of the batch and
position; `i` and `j` are the positions of a query and of a key, and masked pairs (j > i) are absent rows. Layer norms,
softmax and cross-entropy are grouped sums, linear maps joins with a sum, residuals joins.

Two spellings matter for speed, not for values. The sums of attention end in `+ 0e0`: without it the gradient
library takes them for plain matrix products and drops the equality of batch and head in their gradients, a table of
(rows x heads x positions)^2 rows. The softmax and the log of a sum are statements of their own: a grouping by a value
that carries a gradient is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpt2exp.config import ModelConfig
from gpt2exp.engines.sql.statement import Statement, double, statement

EPSILON = 1e-5
"""Of the layer norms."""
GELU_CUBIC = 0.044715
"""Of the tanh approximation of the GELU."""


def forward(model: ModelConfig) -> tuple[Statement, ...]:
    """From `batch` and the weights to `logits`."""
    return (
        statement(
            "x0",
            "token embedding plus position embedding",
            """
            SELECT t.b, t.pos, te.e, te.w + pe.w AS x
            FROM batch t
            JOIN wte te ON te.token = t.token
            JOIN wpe pe ON pe.pos = t.pos AND pe.e = te.e
            """,
        ),
        *(s for layer in range(model.n_layer) for s in block(model, layer)),
        *layer_norm(model, "final", f"x{model.n_layer}", "lnf", None),
        statement(
            "logits",
            "output head, tied to the token embedding",
            """
            SELECT a.b, a.pos, te.token, SUM(a.x * te.w) AS x
            FROM final a
            JOIN wte te ON te.e = a.e
            GROUP BY a.b, a.pos, te.token
            """,
        ),
    )


def block(model: ModelConfig, layer: int) -> Iterator[Statement]:
    """One block: attention, then MLP, each on a normalised input and added to the residual stream."""
    yield from layer_norm(model, f"h{layer}_ln1", f"x{layer}", "ln1", layer)
    yield from attention(model, layer)
    yield residual(model, layer, f"h{layer}_mid", f"x{layer}", f"h{layer}_projected", "b_o")
    yield from layer_norm(model, f"h{layer}_ln2", f"h{layer}_mid", "ln2", layer)
    yield from mlp(model, layer)
    yield residual(model, layer, f"x{layer + 1}", f"h{layer}_mid", f"h{layer}_mlp", "b_pr")


def layer_norm(model: ModelConfig, out: str, x: str, weights: str, layer: int | None) -> Iterator[Statement]:
    """Mean, deviations, their inverse standard deviation, scale and shift."""
    of_layer = "" if layer is None else f" AND g.layer = {layer}"
    shift = f"JOIN {weights}_b a ON a.e = d.e" + of_layer.replace("g.", "a.") if model.bias else ""
    yield statement(
        f"{out}_mean", f"mean of {x} over the width", f"SELECT b, pos, AVG(x) AS x FROM {x} GROUP BY b, pos"
    )
    yield statement(
        f"{out}_centred",
        f"{x} minus its mean",
        f"""
        SELECT x.b, x.pos, x.e, x.x - m.x AS x
        FROM {x} x
        JOIN {out}_mean m ON m.b = x.b AND m.pos = x.pos
        """,
    )
    yield statement(
        f"{out}_rstd",
        "inverse standard deviation",
        f"""
        SELECT b, pos, 1e0 / sqrt(AVG(x * x) + {double(EPSILON)}) AS x
        FROM {out}_centred
        GROUP BY b, pos
        """,
    )
    yield statement(
        out,
        "layer norm: scaled" + (" and shifted" if model.bias else ""),
        f"""
        SELECT d.b, d.pos, d.e, d.x * r.x * g.w{" + a.w" if model.bias else ""} AS x
        FROM {out}_centred d
        JOIN {out}_rstd r ON r.b = d.b AND r.pos = d.pos
        JOIN {weights}_w g ON g.e = d.e{of_layer}
        {shift}
        """,
    )


def attention(model: ModelConfig, layer: int) -> Iterator[Statement]:
    """Queries, keys and values, causal softmax attention, output projection."""
    yield from qkv(model, layer)
    yield scores(model, layer)
    yield from softmax(layer)
    yield statement(
        f"h{layer}_projected",
        "attention's output projection",
        f"""
        SELECT y.b, y.pos, w.o AS e, SUM(y.x * w.w) AS x
        FROM h{layer}_attended y
        JOIN w_o w ON w.h = y.h AND w.c = y.c AND w.layer = {layer}
        GROUP BY y.b, y.pos, w.o
        """,
    )


def qkv(model: ModelConfig, layer: int) -> Iterator[Statement]:
    """The packed projection: s = 0 queries, 1 keys, 2 values."""
    out = f"h{layer}_qkv"
    yield statement(
        f"{out}_product" if model.bias else out,
        "queries (s = 0), keys (s = 1) and values (s = 2)",
        f"""
        SELECT a.b, a.pos, w.s, w.h, w.c, SUM(a.x * w.w) AS x
        FROM h{layer}_ln1 a
        JOIN w_qkv w ON w.e = a.e AND w.layer = {layer}
        GROUP BY a.b, a.pos, w.s, w.h, w.c
        """,
    )
    if model.bias:
        yield statement(
            out,
            "and their biases",
            f"""
            SELECT q.b, q.pos, q.s, q.h, q.c, q.x + a.w AS x
            FROM {out}_product q
            JOIN b_qkv a ON a.s = q.s AND a.h = q.h AND a.c = q.c AND a.layer = {layer}
            """,
        )


def scores(model: ModelConfig, layer: int, name: str = "scores", causal: bool = True) -> Statement:
    """q_i . k_j / sqrt(head width), for j <= i where `causal`."""
    scale = double(1.0 / math.sqrt(model.n_embd // model.n_head))
    return statement(
        f"h{layer}_{name}",
        "query . key / sqrt(head width)" + (" of each position and those before it" if causal else " of all pairs"),
        f"""
        SELECT q.b, q.h, q.pos AS i, k.pos AS j, SUM(q.x * k.x + 0e0) * {scale} AS x
        FROM h{layer}_qkv q
        JOIN h{layer}_qkv k ON k.b = q.b AND k.h = q.h AND k.c = q.c
        WHERE q.s = 0 AND k.s = 1{" AND k.pos <= q.pos" if causal else ""}
        GROUP BY q.b, q.h, q.pos, k.pos
        """,
    )


def softmax(layer: int) -> Iterator[Statement]:
    """exp(score - largest score), its sum, and the values weighted by their quotient."""
    h = f"h{layer}"
    yield statement(
        f"{h}_largest", "largest score of each query", f"SELECT b, h, i, MAX(x) AS x FROM {h}_scores GROUP BY b, h, i"
    )
    yield statement(
        f"{h}_exp",
        "exp(score - largest score)",
        f"""
        SELECT s.b, s.h, s.i, s.j, exp(s.x - m.x) AS x
        FROM {h}_scores s
        JOIN {h}_largest m ON m.b = s.b AND m.h = s.h AND m.i = s.i
        """,
    )
    yield statement(
        f"{h}_exp_sum", "softmax's denominator", f"SELECT b, h, i, SUM(x) AS x FROM {h}_exp GROUP BY b, h, i"
    )
    yield statement(
        f"{h}_exp_values",
        "values, weighted by softmax's numerator",
        f"""
        SELECT p.b, p.i AS pos, p.h, v.c, SUM(p.x * v.x + 0e0) AS x
        FROM {h}_exp p
        JOIN {h}_qkv v ON v.b = p.b AND v.h = p.h AND v.pos = p.j
        WHERE v.s = 2
        GROUP BY p.b, p.i, p.h, v.c
        """,
    )
    yield statement(
        f"{h}_attended",
        "attention: the weighted values over the denominator",
        f"""
        SELECT y.b, y.pos, y.h, y.c, y.x / z.x AS x
        FROM {h}_exp_values y
        JOIN {h}_exp_sum z ON z.b = y.b AND z.h = y.h AND z.i = y.pos
        """,
    )


def mlp(model: ModelConfig, layer: int) -> Iterator[Statement]:
    """Two linear maps around a tanh-approximated GELU."""
    h, hidden = f"h{layer}", f"h{layer}_fc"
    yield statement(
        f"{hidden}_product" if model.bias else hidden,
        "MLP: input projection",
        f"""
        SELECT a.b, a.pos, w.f, SUM(a.x * w.w) AS x
        FROM {h}_ln2 a
        JOIN w_fc w ON w.e = a.e AND w.layer = {layer}
        GROUP BY a.b, a.pos, w.f
        """,
    )
    if model.bias:
        yield statement(
            hidden,
            "and its bias",
            f"""
            SELECT q.b, q.pos, q.f, q.x + a.w AS x
            FROM {hidden}_product q
            JOIN b_fc a ON a.f = q.f AND a.layer = {layer}
            """,
        )
    slope = double(math.sqrt(2.0 / math.pi))
    yield statement(
        f"{h}_gelu",
        "GELU, tanh approximation",
        f"""
        SELECT b, pos, f, 0.5e0 * x * (1e0 + tanh({slope} * (x + {double(GELU_CUBIC)} * x * x * x))) AS x
        FROM {hidden}
        """,
    )
    yield statement(
        f"{h}_mlp",
        "MLP: output projection",
        f"""
        SELECT a.b, a.pos, w.o AS e, SUM(a.x * w.w) AS x
        FROM {h}_gelu a
        JOIN w_pr w ON w.f = a.f AND w.layer = {layer}
        GROUP BY a.b, a.pos, w.o
        """,
    )


def residual(model: ModelConfig, layer: int, out: str, x: str, added: str, bias: str) -> Statement:
    """x plus what a branch adds, its bias with it."""
    shift = f"JOIN {bias} a ON a.o = x.e AND a.layer = {layer}" if model.bias else ""
    return statement(
        out,
        f"residual: {x} plus {added}" + (" and its bias" if model.bias else ""),
        f"""
        SELECT x.b, x.pos, x.e, x.x + y.x{" + a.w" if model.bias else ""} AS x
        FROM {x} x
        JOIN {added} y ON y.b = x.b AND y.pos = x.pos AND y.e = x.e
        {shift}
        """,
    )


def token_losses() -> tuple[Statement, ...]:
    """From `logits` to the cross-entropy of each target, in nats."""
    return (
        statement("logit_largest", "largest logit", "SELECT b, pos, MAX(x) AS x FROM logits GROUP BY b, pos"),
        statement(
            "logit_exp_sum",
            "sum of exp(logit - largest logit)",
            """
            SELECT l.b, l.pos, SUM(exp(l.x - m.x)) AS x
            FROM logits l
            JOIN logit_largest m ON m.b = l.b AND m.pos = l.pos
            GROUP BY l.b, l.pos
            """,
        ),
        statement(
            "log_partition",
            "log of the sum of exp(logit)",
            """
            SELECT s.b, s.pos, m.x + ln(s.x) AS x
            FROM logit_exp_sum s
            JOIN logit_largest m ON m.b = s.b AND m.pos = s.pos
            """,
        ),
        statement(
            "token_loss",
            "cross-entropy of each target, in nats",
            """
            SELECT t.b, t.pos, z.x - l.x AS x
            FROM batch t
            JOIN log_partition z ON z.b = t.b AND z.pos = t.pos
            JOIN logits l ON l.b = t.b AND l.pos = t.pos AND l.token = t.target
            """,
        ),
    )


def objective(model: ModelConfig) -> tuple[Statement, ...]:
    """Everything up to `loss`, the mean over the batch."""
    mean = statement("loss", "mean cross-entropy of the batch", "SELECT AVG(x) AS x FROM token_loss")
    return (*forward(model), *token_losses(), mean)


def evaluation(model: ModelConfig) -> tuple[Statement, ...]:
    """Everything up to `evaluation`: one row of sums and the batch's mean loss."""
    return (
        *forward(model),
        *token_losses(),
        statement(
            "choice",
            "the first of the tokens with the largest logit",
            """
            SELECT l.b, l.pos, MIN(l.token) AS token
            FROM logits l
            JOIN logit_largest m ON m.b = l.b AND m.pos = l.pos AND m.x = l.x
            GROUP BY l.b, l.pos
            """,
        ),
        statement(
            "evaluation",
            "sum and mean of the losses, number of targets, and how many were the model's choice",
            """
            SELECT SUM(l.x) AS loss_sum, AVG(l.x) AS mean_loss, COUNT(*) AS targets,
                   SUM(CASE WHEN c.token = t.target THEN 1 ELSE 0 END) AS correct
            FROM batch t
            JOIN token_loss l ON l.b = t.b AND l.pos = t.pos
            JOIN choice c ON c.b = t.b AND c.pos = t.pos
            """,
        ),
    )
