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
FROM (SELECT sqrt((SELECT SUM(g * g) FROM wte_grad)
  + (SELECT SUM(g * g) FROM wpe_grad)
  + (SELECT SUM(g * g) FROM w_qkv_grad)
  + (SELECT SUM(g * g) FROM w_o_grad)
  + (SELECT SUM(g * g) FROM w_fc_grad)
  + (SELECT SUM(g * g) FROM w_pr_grad)
  + (SELECT SUM(g * g) FROM ln1_w_grad)
  + (SELECT SUM(g * g) FROM ln2_w_grad)
  + (SELECT SUM(g * g) FROM lnf_w_grad)) + 1e-06 AS norm);

-- wte_state: moments of wte
SELECT token, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN wte_state v
JOIN wte_grad g USING (token, e);

-- wte: wte after AdamW with decoupled weight decay
SELECT token, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN wte p ON s.owner = 'decay'
JOIN wte_state v USING (token, e);

-- wpe_state: moments of wpe
SELECT pos, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN wpe_state v
JOIN wpe_grad g USING (pos, e);

-- wpe: wpe after AdamW with decoupled weight decay
SELECT pos, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN wpe p ON s.owner = 'decay'
JOIN wpe_state v USING (pos, e);

-- w_qkv_state: moments of w_qkv
SELECT layer, s, h, c, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN w_qkv_state v
JOIN w_qkv_grad g USING (layer, s, h, c, e);

-- w_qkv: w_qkv after AdamW with decoupled weight decay
SELECT layer, s, h, c, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN w_qkv p ON s.owner = 'decay'
JOIN w_qkv_state v USING (layer, s, h, c, e);

-- w_o_state: moments of w_o
SELECT layer, o, h, c,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN w_o_state v
JOIN w_o_grad g USING (layer, o, h, c);

-- w_o: w_o after AdamW with decoupled weight decay
SELECT layer, o, h, c,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN w_o p ON s.owner = 'decay'
JOIN w_o_state v USING (layer, o, h, c);

-- w_fc_state: moments of w_fc
SELECT layer, f, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN w_fc_state v
JOIN w_fc_grad g USING (layer, f, e);

-- w_fc: w_fc after AdamW with decoupled weight decay
SELECT layer, f, e,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN w_fc p ON s.owner = 'decay'
JOIN w_fc_state v USING (layer, f, e);

-- w_pr_state: moments of w_pr
SELECT layer, o, f,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN w_pr_state v
JOIN w_pr_grad g USING (layer, o, f);

-- w_pr: w_pr after AdamW with decoupled weight decay
SELECT layer, o, f,
       p.w * s.keep - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN w_pr p ON s.owner = 'decay'
JOIN w_pr_state v USING (layer, o, f);

-- ln1_w_state: moments of ln1_w
SELECT layer, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN ln1_w_state v
JOIN ln1_w_grad g USING (layer, e);

-- ln1_w: ln1_w after AdamW
SELECT layer, e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN ln1_w p ON s.owner = 'no_decay'
JOIN ln1_w_state v USING (layer, e);

-- ln2_w_state: moments of ln2_w
SELECT layer, e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN ln2_w_state v
JOIN ln2_w_grad g USING (layer, e);

-- ln2_w: ln2_w after AdamW
SELECT layer, e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN ln2_w p ON s.owner = 'no_decay'
JOIN ln2_w_state v USING (layer, e);

-- lnf_w_state: moments of lnf_w
SELECT e,
       0.9e0 * v.exp_avg + 0.09999999999999998e0 * g.g * n.coef AS exp_avg,
       0.99e0 * v.exp_avg_sq + 0.010000000000000009e0 * power(g.g * n.coef, 2) AS exp_avg_sq
FROM clip n CROSS JOIN lnf_w_state v
JOIN lnf_w_grad g USING (e);

-- lnf_w: lnf_w after AdamW
SELECT e,
       p.w - s.step_size * v.exp_avg
           / (sqrt(v.exp_avg_sq) / s.second_moment_scale + 1e-08) AS w
FROM schedule s
JOIN lnf_w p ON s.owner = 'no_decay'
JOIN lnf_w_state v USING (e);

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
