-- x0: token embedding plus position embedding
SELECT t.b, t.pos, te.e, te.w + pe.w AS x
FROM batch t
JOIN wte te ON te.token = t.token
JOIN wpe pe ON pe.pos = t.pos AND pe.e = te.e;

-- h0_ln1_mean: mean of x0 over the width
SELECT b, pos, AVG(x) AS x FROM x0 GROUP BY b, pos;

-- h0_ln1_centred: x0 minus its mean
SELECT x.b, x.pos, x.e, x.x - m.x AS x
FROM x0 x
JOIN h0_ln1_mean m ON m.b = x.b AND m.pos = x.pos;

-- h0_ln1_rstd: inverse standard deviation
SELECT b, pos, 1e0 / sqrt(AVG(x * x) + 1e-05) AS x
FROM h0_ln1_centred
GROUP BY b, pos;

-- h0_ln1: layer norm: scaled
SELECT d.b, d.pos, d.e, d.x * r.x * g.w AS x
FROM h0_ln1_centred d
JOIN h0_ln1_rstd r ON r.b = d.b AND r.pos = d.pos
JOIN ln1_w g ON g.e = d.e AND g.layer = 0;

-- h0_qkv: queries (s = 0), keys (s = 1) and values (s = 2)
SELECT a.b, a.pos, w.s, w.h, w.c, SUM(a.x * w.w) AS x
FROM h0_ln1 a
JOIN w_qkv w ON w.e = a.e AND w.layer = 0
GROUP BY a.b, a.pos, w.s, w.h, w.c;

-- h0_scores: query . key / sqrt(head width) of each position and those before it
SELECT q.b, q.h, q.pos AS i, k.pos AS j, SUM(q.x * k.x + 0e0) * 0.5e0 AS x
FROM h0_qkv q
JOIN h0_qkv k ON k.b = q.b AND k.h = q.h AND k.c = q.c
WHERE q.s = 0 AND k.s = 1 AND k.pos <= q.pos
GROUP BY q.b, q.h, q.pos, k.pos;

-- h0_largest: largest score of each query
SELECT b, h, i, MAX(x) AS x FROM h0_scores GROUP BY b, h, i;

-- h0_exp: exp(score - largest score)
SELECT s.b, s.h, s.i, s.j, exp(s.x - m.x) AS x
FROM h0_scores s
JOIN h0_largest m ON m.b = s.b AND m.h = s.h AND m.i = s.i;

-- h0_exp_sum: softmax's denominator
SELECT b, h, i, SUM(x) AS x FROM h0_exp GROUP BY b, h, i;

-- h0_exp_values: values, weighted by softmax's numerator
SELECT p.b, p.i AS pos, p.h, v.c, SUM(p.x * v.x + 0e0) AS x
FROM h0_exp p
JOIN h0_qkv v ON v.b = p.b AND v.h = p.h AND v.pos = p.j
WHERE v.s = 2
GROUP BY p.b, p.i, p.h, v.c;

-- h0_attended: attention: the weighted values over the denominator
SELECT y.b, y.pos, y.h, y.c, y.x / z.x AS x
FROM h0_exp_values y
JOIN h0_exp_sum z ON z.b = y.b AND z.h = y.h AND z.i = y.pos;

-- h0_projected: attention's output projection
SELECT y.b, y.pos, w.o AS e, SUM(y.x * w.w) AS x
FROM h0_attended y
JOIN w_o w ON w.h = y.h AND w.c = y.c AND w.layer = 0
GROUP BY y.b, y.pos, w.o;

-- h0_mid: residual: x0 plus h0_projected
SELECT x.b, x.pos, x.e, x.x + y.x AS x
FROM x0 x
JOIN h0_projected y ON y.b = x.b AND y.pos = x.pos AND y.e = x.e;

-- h0_ln2_mean: mean of h0_mid over the width
SELECT b, pos, AVG(x) AS x FROM h0_mid GROUP BY b, pos;

-- h0_ln2_centred: h0_mid minus its mean
SELECT x.b, x.pos, x.e, x.x - m.x AS x
FROM h0_mid x
JOIN h0_ln2_mean m ON m.b = x.b AND m.pos = x.pos;

-- h0_ln2_rstd: inverse standard deviation
SELECT b, pos, 1e0 / sqrt(AVG(x * x) + 1e-05) AS x
FROM h0_ln2_centred
GROUP BY b, pos;

-- h0_ln2: layer norm: scaled
SELECT d.b, d.pos, d.e, d.x * r.x * g.w AS x
FROM h0_ln2_centred d
JOIN h0_ln2_rstd r ON r.b = d.b AND r.pos = d.pos
JOIN ln2_w g ON g.e = d.e AND g.layer = 0;

-- h0_fc: MLP: input projection
SELECT a.b, a.pos, w.f, SUM(a.x * w.w) AS x
FROM h0_ln2 a
JOIN w_fc w ON w.e = a.e AND w.layer = 0
GROUP BY a.b, a.pos, w.f;

-- h0_gelu: GELU, tanh approximation
SELECT b, pos, f, 0.5e0 * x * (1e0 + tanh(0.7978845608028654e0 * (x + 0.044715e0 * x * x * x))) AS x
FROM h0_fc;

-- h0_mlp: MLP: output projection
SELECT a.b, a.pos, w.o AS e, SUM(a.x * w.w) AS x
FROM h0_gelu a
JOIN w_pr w ON w.f = a.f AND w.layer = 0
GROUP BY a.b, a.pos, w.o;

-- x1: residual: h0_mid plus h0_mlp
SELECT x.b, x.pos, x.e, x.x + y.x AS x
FROM h0_mid x
JOIN h0_mlp y ON y.b = x.b AND y.pos = x.pos AND y.e = x.e;

-- final_mean: mean of x1 over the width
SELECT b, pos, AVG(x) AS x FROM x1 GROUP BY b, pos;

-- final_centred: x1 minus its mean
SELECT x.b, x.pos, x.e, x.x - m.x AS x
FROM x1 x
JOIN final_mean m ON m.b = x.b AND m.pos = x.pos;

-- final_rstd: inverse standard deviation
SELECT b, pos, 1e0 / sqrt(AVG(x * x) + 1e-05) AS x
FROM final_centred
GROUP BY b, pos;

-- final: layer norm: scaled
SELECT d.b, d.pos, d.e, d.x * r.x * g.w AS x
FROM final_centred d
JOIN final_rstd r ON r.b = d.b AND r.pos = d.pos
JOIN lnf_w g ON g.e = d.e;

-- logits: output head, tied to the token embedding
SELECT a.b, a.pos, te.token, SUM(a.x * te.w) AS x
FROM final a
JOIN wte te ON te.e = a.e
GROUP BY a.b, a.pos, te.token;

-- logit_largest: largest logit
SELECT b, pos, MAX(x) AS x FROM logits GROUP BY b, pos;

-- logit_exp_sum: sum of exp(logit - largest logit)
SELECT l.b, l.pos, SUM(exp(l.x - m.x)) AS x
FROM logits l
JOIN logit_largest m ON m.b = l.b AND m.pos = l.pos
GROUP BY l.b, l.pos;

-- log_partition: log of the sum of exp(logit)
SELECT s.b, s.pos, m.x + ln(s.x) AS x
FROM logit_exp_sum s
JOIN logit_largest m ON m.b = s.b AND m.pos = s.pos;

-- token_loss: cross-entropy of each target, in nats
SELECT t.b, t.pos, z.x - l.x AS x
FROM batch t
JOIN log_partition z ON z.b = t.b AND z.pos = t.pos
JOIN logits l ON l.b = t.b AND l.pos = t.pos AND l.token = t.target;

-- loss: mean cross-entropy of the batch
SELECT AVG(x) AS x FROM token_loss;

-- wte_grad: gradient of the loss with respect to wte
SELECT token, e, COALESCE(grad(loss, w), 0e0) AS g
FROM wte;

-- wpe_grad: gradient of the loss with respect to wpe
SELECT pos, e, COALESCE(grad(loss, w), 0e0) AS g
FROM wpe;

-- ln1_w_grad: gradient of the loss with respect to ln1_w
SELECT layer, e, COALESCE(grad(loss, w), 0e0) AS g
FROM ln1_w;

-- w_qkv_grad: gradient of the loss with respect to w_qkv
SELECT layer, s, h, c, e, COALESCE(grad(loss, w), 0e0) AS g
FROM w_qkv;

-- w_o_grad: gradient of the loss with respect to w_o
SELECT layer, o, h, c, COALESCE(grad(loss, w), 0e0) AS g
FROM w_o;

-- ln2_w_grad: gradient of the loss with respect to ln2_w
SELECT layer, e, COALESCE(grad(loss, w), 0e0) AS g
FROM ln2_w;

-- w_fc_grad: gradient of the loss with respect to w_fc
SELECT layer, f, e, COALESCE(grad(loss, w), 0e0) AS g
FROM w_fc;

-- w_pr_grad: gradient of the loss with respect to w_pr
SELECT layer, o, f, COALESCE(grad(loss, w), 0e0) AS g
FROM w_pr;

-- lnf_w_grad: gradient of the loss with respect to lnf_w
SELECT e, COALESCE(grad(loss, w), 0e0) AS g
FROM lnf_w;

-- grad_norm: norm of the whole gradient
SELECT sqrt((SELECT SUM(g * g) FROM wte_grad)
  + (SELECT SUM(g * g) FROM wpe_grad)
  + (SELECT SUM(g * g) FROM ln1_w_grad)
  + (SELECT SUM(g * g) FROM w_qkv_grad)
  + (SELECT SUM(g * g) FROM w_o_grad)
  + (SELECT SUM(g * g) FROM ln2_w_grad)
  + (SELECT SUM(g * g) FROM w_fc_grad)
  + (SELECT SUM(g * g) FROM w_pr_grad)
  + (SELECT SUM(g * g) FROM lnf_w_grad)) AS norm;

-- clip: global-norm clip: what gradients are multiplied with
SELECT CASE WHEN norm <= 1.0e0 THEN 1e0 ELSE 1.0e0 / norm END AS coef
FROM (SELECT sqrt((SELECT SUM(g * g) FROM w_qkv_grad)
  + (SELECT SUM(g * g) FROM w_o_grad)
  + (SELECT SUM(g * g) FROM w_fc_grad)
  + (SELECT SUM(g * g) FROM w_pr_grad)
  + (SELECT SUM(g * g) FROM wte_grad)
  + (SELECT SUM(g * g) FROM wpe_grad)
  + (SELECT SUM(g * g) FROM ln1_w_grad)
  + (SELECT SUM(g * g) FROM ln2_w_grad)
  + (SELECT SUM(g * g) FROM lnf_w_grad)) + 1e-06 AS norm);

-- w_qkv_state: momentum of w_qkv
SELECT layer, s, h, c, e, 0.95e0 * v.momentum_buffer + g.g * n.coef AS momentum_buffer
FROM clip n CROSS JOIN w_qkv_state v
JOIN w_qkv_grad g USING (layer, s, h, c, e);

-- w_o_state: momentum of w_o
SELECT layer, o, h, c, 0.95e0 * v.momentum_buffer + g.g * n.coef AS momentum_buffer
FROM clip n CROSS JOIN w_o_state v
JOIN w_o_grad g USING (layer, o, h, c);

-- w_fc_state: momentum of w_fc
SELECT layer, f, e, 0.95e0 * v.momentum_buffer + g.g * n.coef AS momentum_buffer
FROM clip n CROSS JOIN w_fc_state v
JOIN w_fc_grad g USING (layer, f, e);

-- w_pr_state: momentum of w_pr
SELECT layer, o, f, 0.95e0 * v.momentum_buffer + g.g * n.coef AS momentum_buffer
FROM clip n CROSS JOIN w_pr_state v
JOIN w_pr_grad g USING (layer, o, f);

-- hidden_direction: directions of all matrices, short side as rows
SELECT p.layer AS mat, p.e AS r, (p.s * 4 + p.h) * 4 + p.c AS k, g.g * n.coef + 0.95e0 * p.momentum_buffer AS x
FROM clip n CROSS JOIN w_qkv_state p
JOIN w_qkv_grad g USING (layer, s, h, c, e)
UNION ALL
SELECT 1 + p.layer AS mat, p.o AS r, p.h * 4 + p.c AS k, g.g * n.coef + 0.95e0 * p.momentum_buffer AS x
FROM clip n CROSS JOIN w_o_state p
JOIN w_o_grad g USING (layer, o, h, c)
UNION ALL
SELECT 2 + p.layer AS mat, p.e AS r, p.f AS k, g.g * n.coef + 0.95e0 * p.momentum_buffer AS x
FROM clip n CROSS JOIN w_fc_state p
JOIN w_fc_grad g USING (layer, f, e)
UNION ALL
SELECT 3 + p.layer AS mat, p.o AS r, p.f AS k, g.g * n.coef + 0.95e0 * p.momentum_buffer AS x
FROM clip n CROSS JOIN w_pr_state p
JOIN w_pr_grad g USING (layer, o, f);

-- hidden_norm: norm of each matrix
SELECT mat, GREATEST(sqrt(SUM(x * x)), 1e-07) AS x
FROM hidden_direction
GROUP BY mat;

-- hidden_x0: scaled to norm 1
SELECT d.mat, d.r, d.k, d.x / n.x AS x
FROM hidden_direction d
JOIN hidden_norm n ON n.mat = d.mat;

-- hidden_gram0: G = X Xᵀ
SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
FROM hidden_x0 p
JOIN hidden_x0 q ON q.mat = p.mat AND q.k = p.k
GROUP BY p.mat, p.r, q.r;

-- hidden_factor0: b G + c G²
SELECT d.mat, d.r, d.k, -4.775e0 * d.x + 2.0315e0 * s.x AS x
FROM hidden_gram0 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_gram0 p
      JOIN hidden_gram0 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_x1: a X + (b G + c G²) X
SELECT d.mat, d.r, d.k, 3.4445e0 * d.x + s.x AS x
FROM hidden_x0 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_factor0 p
      JOIN hidden_x0 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_gram1: G = X Xᵀ
SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
FROM hidden_x1 p
JOIN hidden_x1 q ON q.mat = p.mat AND q.k = p.k
GROUP BY p.mat, p.r, q.r;

-- hidden_factor1: b G + c G²
SELECT d.mat, d.r, d.k, -4.775e0 * d.x + 2.0315e0 * s.x AS x
FROM hidden_gram1 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_gram1 p
      JOIN hidden_gram1 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_x2: a X + (b G + c G²) X
SELECT d.mat, d.r, d.k, 3.4445e0 * d.x + s.x AS x
FROM hidden_x1 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_factor1 p
      JOIN hidden_x1 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_gram2: G = X Xᵀ
SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
FROM hidden_x2 p
JOIN hidden_x2 q ON q.mat = p.mat AND q.k = p.k
GROUP BY p.mat, p.r, q.r;

-- hidden_factor2: b G + c G²
SELECT d.mat, d.r, d.k, -4.775e0 * d.x + 2.0315e0 * s.x AS x
FROM hidden_gram2 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_gram2 p
      JOIN hidden_gram2 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_x3: a X + (b G + c G²) X
SELECT d.mat, d.r, d.k, 3.4445e0 * d.x + s.x AS x
FROM hidden_x2 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_factor2 p
      JOIN hidden_x2 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_gram3: G = X Xᵀ
SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
FROM hidden_x3 p
JOIN hidden_x3 q ON q.mat = p.mat AND q.k = p.k
GROUP BY p.mat, p.r, q.r;

-- hidden_factor3: b G + c G²
SELECT d.mat, d.r, d.k, -4.775e0 * d.x + 2.0315e0 * s.x AS x
FROM hidden_gram3 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_gram3 p
      JOIN hidden_gram3 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_x4: a X + (b G + c G²) X
SELECT d.mat, d.r, d.k, 3.4445e0 * d.x + s.x AS x
FROM hidden_x3 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_factor3 p
      JOIN hidden_x3 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_gram4: G = X Xᵀ
SELECT p.mat, p.r, q.r AS k, SUM(p.x * q.x) AS x
FROM hidden_x4 p
JOIN hidden_x4 q ON q.mat = p.mat AND q.k = p.k
GROUP BY p.mat, p.r, q.r;

-- hidden_factor4: b G + c G²
SELECT d.mat, d.r, d.k, -4.775e0 * d.x + 2.0315e0 * s.x AS x
FROM hidden_gram4 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_gram4 p
      JOIN hidden_gram4 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- hidden_orthogonal: a X + (b G + c G²) X
SELECT d.mat, d.r, d.k, 3.4445e0 * d.x + s.x AS x
FROM hidden_x4 d
JOIN (SELECT p.mat, p.r, q.k, SUM(p.x * q.x) AS x
      FROM hidden_factor4 p
      JOIN hidden_x4 q ON q.mat = p.mat AND q.r = p.k
      GROUP BY p.mat, p.r, q.k) s ON s.mat = d.mat AND s.r = d.r AND s.k = d.k;

-- w_qkv: w_qkv after Muon: along the orthogonalized direction
SELECT p.layer, p.s, p.h, p.c, p.e, p.w * s.keep - s.lr * 1.3856406460551018e0 * u.x AS w
FROM schedule s
JOIN w_qkv p ON s.owner = 'hidden'
JOIN hidden_orthogonal u ON u.mat = p.layer AND u.r = p.e AND u.k = (p.s * 4 + p.h) * 4 + p.c;

-- w_o: w_o after Muon: along the orthogonalized direction
SELECT p.layer, p.o, p.h, p.c, p.w * s.keep - s.lr * 0.8e0 * u.x AS w
FROM schedule s
JOIN w_o p ON s.owner = 'hidden'
JOIN hidden_orthogonal u ON u.mat = 1 + p.layer AND u.r = p.o AND u.k = p.h * 4 + p.c;

-- w_fc: w_fc after Muon: along the orthogonalized direction
SELECT p.layer, p.f, p.e, p.w * s.keep - s.lr * 1.6e0 * u.x AS w
FROM schedule s
JOIN w_fc p ON s.owner = 'hidden'
JOIN hidden_orthogonal u ON u.mat = 2 + p.layer AND u.r = p.e AND u.k = p.f;

-- w_pr: w_pr after Muon: along the orthogonalized direction
SELECT p.layer, p.o, p.f, p.w * s.keep - s.lr * 1.6e0 * u.x AS w
FROM schedule s
JOIN w_pr p ON s.owner = 'hidden'
JOIN hidden_orthogonal u ON u.mat = 3 + p.layer AND u.r = p.o AND u.k = p.f;

-- wte_state: moments of wte
SELECT token, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.95e0 * v.exp_avg_sq + 0.050000000000000044e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN wte_state v
JOIN wte_grad g USING (token, e);

-- wte: wte after AdamW with decoupled weight decay
SELECT token, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN wte p ON s.owner = 'aux_decay'
JOIN wte_state v USING (token, e);

-- wpe_state: moments of wpe
SELECT pos, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.95e0 * v.exp_avg_sq + 0.050000000000000044e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN wpe_state v
JOIN wpe_grad g USING (pos, e);

-- wpe: wpe after AdamW with decoupled weight decay
SELECT pos, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN wpe p ON s.owner = 'aux_decay'
JOIN wpe_state v USING (pos, e);

-- ln1_w_state: moments of ln1_w
SELECT layer, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.95e0 * v.exp_avg_sq + 0.050000000000000044e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN ln1_w_state v
JOIN ln1_w_grad g USING (layer, e);

-- ln1_w: ln1_w after AdamW
SELECT layer, e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN ln1_w p ON s.owner = 'aux_no_decay'
JOIN ln1_w_state v USING (layer, e);

-- ln2_w_state: moments of ln2_w
SELECT layer, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.95e0 * v.exp_avg_sq + 0.050000000000000044e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN ln2_w_state v
JOIN ln2_w_grad g USING (layer, e);

-- ln2_w: ln2_w after AdamW
SELECT layer, e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN ln2_w p ON s.owner = 'aux_no_decay'
JOIN ln2_w_state v USING (layer, e);

-- lnf_w_state: moments of lnf_w
SELECT e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.95e0 * v.exp_avg_sq + 0.050000000000000044e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN lnf_w_state v
JOIN lnf_w_grad g USING (e);

-- lnf_w: lnf_w after AdamW
SELECT e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN lnf_w p ON s.owner = 'aux_no_decay'
JOIN lnf_w_state v USING (e);

-- qk_max: largest logit of each head, over all micro-batches, before the update
SELECT * FROM (
SELECT 0 AS layer, h, MAX(x) AS x FROM h0_scores GROUP BY h
)
ORDER BY layer, h;

-- w_qkv: QK clip: shrink queries and keys of the heads over the threshold
SELECT p.layer, p.s, p.h, p.c, p.e,
       p.w * CASE p.s WHEN 0 THEN power(100.0e0 / GREATEST(q.x, 100.0e0), 0.5e0)
                      WHEN 1 THEN power(100.0e0 / GREATEST(q.x, 100.0e0), 0.5e0)
                      ELSE 1e0 END AS w
FROM w_qkv p
JOIN qk_max q ON q.layer = p.layer AND q.h = p.h;

-- choice: the first of the tokens with the largest logit
SELECT l.b, l.pos, MIN(l.token) AS token
FROM logits l
JOIN logit_largest m ON m.b = l.b AND m.pos = l.pos AND m.x = l.x
GROUP BY l.b, l.pos;

-- evaluation: sum and mean of the losses, number of targets, and how many were the model's choice
SELECT SUM(l.x) AS loss_sum, AVG(l.x) AS mean_loss, COUNT(*) AS targets,
       SUM(CASE WHEN c.token = t.target THEN 1 ELSE 0 END) AS correct
FROM batch t
JOIN token_loss l ON l.b = t.b AND l.pos = t.pos
JOIN choice c ON c.b = t.b AND c.pos = t.pos;
