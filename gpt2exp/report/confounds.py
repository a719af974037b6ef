"""What differs between the arms besides their names, read from the configurations: a reader's list of doubts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2exp.identity import canonical, differing, without
from gpt2exp.report.pooling import names_of
from gpt2exp.report.records import shown
from gpt2exp.report.runs import Run
from gpt2exp.report.sentences import counted, rough

SMALL_MODEL = 10_000_000
"""Weights in the hidden matrices below which rounding alone visibly moves a run's final loss."""
AUX_KIND = "adamw"
"""Rule of an `aux` section that names none (`gpt2exp.optim.muon.AuxRecipe`)."""
HIDDEN, EMBEDDINGS, VECTORS = "hidden matrices", "embeddings", "biases and norms"
DECAYED = {"matrices": (HIDDEN, EMBEDDINGS), "hidden": (HIDDEN,), "none": ()}
"""`decay_scope` -> tensors that weight decay touches (`gpt2exp.optim.param_groups.DecayScope`)."""
GLOBAL_KEYS = ("kind", "label", "aux", "max_grad_norm", "clip_scope", "decay_scope", "weight_decay")
"""Keys of a recipe that are not settings of the rule of one kind of tensor."""


@dataclass(frozen=True)
class Arm:
    """Runs of one optimizer."""

    name: str
    optimizer: Mapping[str, Any]
    runs: tuple[Run, ...]

    def section(self, tensors: str) -> Mapping[str, Any]:
        """The part of the recipe that governs `tensors`: hidden matrices have the recipe itself."""
        aux = self.optimizer.get("aux")
        return self.optimizer if tensors == HIDDEN or aux is None else aux

    def decay(self, tensors: str) -> float:
        """Weight decay of `tensors`; a section without a `decay_scope` decays everything it governs."""
        section = self.section(tensors)
        touched = DECAYED.get(section.get("decay_scope", ""), (HIDDEN, EMBEDDINGS, VECTORS))
        return float(section.get("weight_decay", 0.0)) if tensors in touched else 0.0

    def settings(self, tensors: str) -> dict[str, Any]:
        """Everything that decides an update of `tensors`: rule, its own keys, effective decay."""
        section = self.section(tensors)
        rule = section.get("kind", AUX_KIND)
        return {"rule": rule, **without(section, *GLOBAL_KEYS), "weight_decay": self.decay(tensors)}

    @property
    def clip(self) -> tuple[float, str]:
        """Largest gradient norm (0: no clip), and which gradients are measured."""
        return float(self.optimizer.get("max_grad_norm", 0.0)), str(self.optimizer.get("clip_scope", "all"))


def confounds(runs: Sequence[Run], plan: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Sentences about what else could explain a difference between the arms; nothing here is specific to an arm.

    Args:
        runs: an arm is what has one optimizer configuration.
        plan: as `protocol.json` holds it.
    """
    arms = arms_of(runs)
    lines: list[str] = []
    if len(arms) > 1:
        for parts in (_scope, _learning_rates, _weight_decay, _same_rule, _clip, _qk_clip):
            lines += parts(arms)
        lines += [*_shared(runs), *_tuning(plan)]
    return (*lines, *_rounding(runs))


def arms_of(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """Runs by optimizer configuration, named by their label, or by their own name where two share a label."""
    grouped: dict[tuple[str, str], list[tuple[Run, str]]] = {}
    for run, name in zip(runs, names_of(runs), strict=True):
        grouped.setdefault((run.arm, canonical(run.record["training"]["optimizer"])), []).append((run, name))
    labels = [label for label, _ in grouped]
    return tuple(
        Arm(
            label if labels.count(label) == 1 else ", ".join(name for _, name in members),
            members[0][0].record["training"]["optimizer"],
            tuple(run for run, _ in members),
        )
        for (label, _), members in grouped.items()
    )


def _scope(arms: Sequence[Arm]) -> Iterator[str]:
    first, *others = arms
    for other in others:
        elsewhere = [
            f"{key} of the {tensors}: {shown(x)} in {first.name}, {shown(y)} in {other.name}"
            for tensors in (EMBEDDINGS, VECTORS)
            for key, x, y in differing(first.settings(tensors), other.settings(tensors))
        ]
        names = f"{first.name} and {other.name}"
        if elsewhere or first.clip != other.clip:
            listed = f": {'; '.join(elsewhere)}" if elsewhere else " (the gradient clip)"
            yield f"{names} differ on more than the hidden matrices{listed}."
        else:
            shared = first.settings(VECTORS)
            yield (
                f"{names} differ on the hidden matrices only: all other tensors are updated alike "
                f"({shared['rule']}, lr {_value(shared.get('lr'))}){_clip_note(first, other)}."
            )


def _clip_note(*arms: Arm) -> str:
    notes = []
    if arms[0].clip[0] and arms[0].clip[1] == "all":
        notes.append("one clip factor from the norm of all gradients ties them to the hidden matrices")
    if any(_clipped_heads(arm) for arm in arms):
        notes.append("the QK clip scales query and key biases too")
    return f"; {', and '.join(notes)}" if notes else ""


def _learning_rates(arms: Sequence[Arm]) -> Iterator[str]:
    for tensors in (HIDDEN, EMBEDDINGS):
        rates = [arm.section(tensors).get("lr") for arm in arms]
        if len(set(rates)) == 1:
            continue
        line = f"Peak learning rate on the {tensors}: {_listed(arms, map(_value, rates))}."
        if len({arm.settings(tensors)["rule"] for arm in arms}) > 1:
            sections = [(arm.name, arm.section(tensors)) for arm in arms]
            scales = [f"{name} scale={section['scale']}" for name, section in sections if "scale" in section]
            note = f" ({', '.join(scales)})" if scales else ""
            line += f" The rules scale their updates differently{note}, so these numbers cannot be held side by side."
        yield line


def _weight_decay(arms: Sequence[Arm]) -> Iterator[str]:
    for tensors in (HIDDEN, EMBEDDINGS, VECTORS):
        products = [float(arm.section(tensors).get("lr", 0.0)) * arm.decay(tensors) for arm in arms]
        if len(set(products)) == 1:
            continue
        texts = [
            f"{rough(product)} ({_value(arm.section(tensors).get('lr'))} x {_value(arm.decay(tensors))})"
            if product
            else "none"
            for arm, product in zip(arms, products, strict=True)
        ]
        ratio = f", a ratio of {rough(max(products) / min(products))}" if min(products) > 0 else ""
        yield (
            f"Weight decay on the {tensors} differs, as learning rate x weight_decay at the peak: "
            f"{_listed(arms, texts)}{ratio}."
        )


def _same_rule(arms: Sequence[Arm]) -> Iterator[str]:
    first, *others = arms
    for other in others:
        if first.optimizer.get("kind") != other.optimizer.get("kind"):
            continue
        keys = [f"{key} {shown(x)} and {shown(y)}" for key, x, y in differing(first.optimizer, other.optimizer)]
        yield f"{first.name} and {other.name} are one rule with other settings: {'; '.join(keys)}."


def _clip(arms: Sequence[Arm]) -> Iterator[str]:
    texts = [f"norm {_value(norm)} over {scope} gradients" if norm else "off" for norm, scope in (a.clip for a in arms)]
    yield (
        f"Gradient clip: {texts[0]} in every arm."
        if len(set(texts)) == 1
        else f"Gradient clips differ: {_listed(arms, texts)}."
    )
    shares = {arm.name: share for arm in arms if (share := _clipped_share(arm)) is not None}
    if shares and any(arm.clip[0] for arm in arms):
        listed = ", ".join(f"{100 * share:.0f} % of the updates of {name}" for name, share in shares.items())
        yield f"The gradient clip acted in {listed}."


def _clipped_share(arm: Arm) -> float | None:
    acted = [row["clip_coef"] < 1 for run in arm.runs for row in run.metrics if row.get("clip_coef") is not None]
    return sum(acted) / len(acted) if acted else None


def _qk_clip(arms: Sequence[Arm]) -> Iterator[str]:
    for arm in arms:
        if not any("qk_clipped" in row for run in arm.runs for row in run.metrics):
            continue
        heads = _clipped_heads(arm)
        threshold = _value(arm.optimizer.get("qk_clip_threshold"))
        yield (
            f"The QK clip of {arm.name} (threshold {threshold}) acted {counted(heads, 'time')} on a head."
            if heads
            else f"The QK clip of {arm.name} (threshold {threshold}) never acted, so nothing here is due to it."
        )


def _clipped_heads(arm: Arm) -> int:
    return sum(int(row.get("qk_clipped") or 0) for run in arm.runs for row in run.metrics)


def _shared(runs: Sequence[Run]) -> Iterator[str]:
    """What every run has in common, so that the reader need not look for it; differences are listed elsewhere."""
    training = [run.record["training"] for run in runs]
    schedules = {canonical(tiers["schedule"]) for tiers in training}
    precisions = {tiers["precision"] for tiers in training}
    if len(schedules) == 1:
        schedule = training[0]["schedule"]
        yield (
            f"Equal in every arm: {schedule['tokens_per_step']:,} tokens a step, {schedule['num_steps']:,} steps, "
            f"warm-up {schedule['warmup_steps']:,}, {schedule['decay']} decay to {_value(schedule['min_lr_ratio'])} "
            f"of the peak{f', precision {precisions.pop()}' if len(precisions) == 1 else ''}."
        )
    else:
        yield "Budgets or schedules differ between the runs."
    if len(precisions) > 1:
        yield f"Precision differs: {', '.join(sorted(precisions))}."


def _tuning(plan: Mapping[str, Any] | None) -> Iterator[str]:
    declared = (plan or {}).get("declared", {})
    trials, arms = declared.get("tuning_trials") or (), declared.get("arms") or ()
    if not trials:
        yield (
            "Tuning budgets are not declared: how many settings each arm was tried with is unknown, and the arm that "
            "was tried with more tends to look better."
        )
        return
    seeds = declared.get("tuning_seeds") or ()
    at = f" at tuning seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ", seeds not declared"
    if len(set(trials)) == 1:
        yield f"Equal tuning budgets: {counted(trials[0], 'trial')} an arm{at}."
    else:
        listed = ", ".join(f"{arm} {count}" for arm, count in zip(arms, trials, strict=False))
        yield f"Tuning budgets differ: {listed} trials{at}; the arm that was tried with more tends to look better."
    reused = sorted({*seeds} & {*(declared.get("seeds") or ())})
    if reused:
        yield f"Seed {', '.join(map(str, reused))} chose the settings and is reported too: its result is too good."


def _rounding(runs: Sequence[Run]) -> Iterator[str]:
    models = [run.record["training"]["model"] for run in runs]
    if models and max(12 * model["n_layer"] * model["n_embd"] ** 2 for model in models) < SMALL_MODEL:
        yield (
            "A floor under every difference here: with a model this small, execution rounding alone moves the final "
            "loss by about 0.01 nats (two builds of the same arithmetic ended at 2.098 and 2.112)."
        )


def _listed(arms: Sequence[Arm], texts: Any) -> str:
    return ", ".join(f"{arm.name} {text}" for arm, text in zip(arms, texts, strict=True))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else shown("none" if value is None else value)
