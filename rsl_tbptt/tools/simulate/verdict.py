"""What the returns of students with and without memory say: the rule of ``rsl-tbptt compare``.

A student's return is the mean over a seed's episodes, as a share of the teacher's. It differs by
seed, with a standard deviation that is taken as the same for all students. The interval of a
difference is Student's t, 95 %, and wider by what students may still learn: as much as they did in
the last quarter of their training:

===========================================  ===================  ================
interval                                     below the margin     above 0
===========================================  ===================  ================
the better of both with memory less the MLP  memory does not pay  memory pays
if it pays: LSTM less the MLP with history   history is enough    it is not enough
===========================================  ===================  ================

Everything else is not decided; nothing is before the best student reaches half of the teacher's
return. docs/studies/compare.md has how often this is wrong.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from rsl_tbptt.tools.simulate.evaluate import CONFIDENCE, mean_and_interval

MARGIN = 0.05
"""A gain below this share of the teacher's return does not count."""
TEACHER, MLP, HISTORY, LSTM = "teacher", "mlp", "history", "lstm"
STUDENTS = (MLP, HISTORY, LSTM)
SEES_ALL = (f"{MLP}_sees_all", f"{LSTM}_sees_all")
"""Students that see what the teacher sees."""
PAYS, ENOUGH, USELESS = "memory pays", "history is enough", "memory does not pay"
OPEN = "not decided"
MOST_SEEDS = 100
LEARNED = 0.5
"""Share of the teacher's return below which even the best student has hardly learned."""


@dataclass(frozen=True)
class Gain:
    """A difference of two students, as a share of the teacher's return."""

    mean: float
    low: float
    """Lower end of its interval; infinite with one seed, as the upper one."""
    high: float

    @property
    def counts(self) -> bool | None:
        """Whether it does; None if that is not decided."""
        if self.high < MARGIN:
            return False
        return True if self.low > 0.0 else None

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{self.mean:.1%} (one seed)"
        return _shown(self.mean, self.low, self.high, ".1%")


@dataclass(frozen=True)
class Verdict:
    """What the returns say."""

    memory: Gain
    """Of the better student with memory over the MLP."""
    lstm: Gain
    """Of the LSTM over the MLP with history."""
    best: float
    """Share of the teacher's return that the best student has."""
    learning: Mapping[str, float]
    """What each student may still gain, in the same unit: what :func:`decide` took."""
    seeds_needed: int | None
    """Seeds that would decide what is open if means and deviation stay; None if none would."""

    @property
    def name(self) -> str:
        """The verdict in a few words."""
        if self.best < LEARNED:
            return OPEN
        if self.memory.counts:
            return ENOUGH if self.lstm.counts is False else PAYS
        return OPEN if self.memory.counts is None else USELESS


def decide(shares: Mapping[str, Sequence[float]], learning: Mapping[str, float]) -> Verdict:
    """Decide whether memory pays.

    Args:
        shares: Returns as shares of the teacher's, of each of :data:`STUDENTS`; one by seed.
        learning: What each student may still gain, in the same unit; at least 0.
    """
    num_seeds = len(shares[MLP])
    means = {name: statistics.fmean(values) for name, values in shares.items()}
    squares = sum((value - means[name]) ** 2 for name, of in shares.items() for value in of)
    deviation = math.sqrt(squares / max(len(STUDENTS) * (num_seeds - 1), 1))

    def gain(names: Sequence[str], over: str, seeds: int) -> Gain:
        half = math.inf
        if freedom := len(STUDENTS) * (seeds - 1):
            quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
            half = quantile * deviation * math.sqrt(2 / seeds)
        now = max(means[name] for name in names) - means[over]
        later = max(means[name] + learning[name] for name in names) - means[over]
        return Gain(now, now - half - learning[over], later + half)

    def gains(seeds: int) -> tuple[Gain, Gain]:
        return gain((HISTORY, LSTM), MLP, seeds), gain((LSTM,), HISTORY, seeds)

    def is_decided(seeds: int) -> bool:
        memory, lstm = gains(seeds)
        return memory.counts is False or (memory.counts is True and lstm.counts is not None)

    tried = range(num_seeds, max(MOST_SEEDS, num_seeds) + 1)
    needed = next((seeds for seeds in tried if is_decided(seeds)), None)
    return Verdict(*gains(num_seeds), max(means.values()), learning, needed)


def decided(result: Mapping[str, Any]) -> Verdict | None:
    """Decide from what ``compare.json`` holds; None as long as no seed has all students."""
    found = _by_name(result)
    shares, one = _shares(found), abs(found[TEACHER][0]["mean_return"])
    if not (num_seeds := min(len(shares.get(name, ())) for name in STUDENTS)):
        return None
    rose = {n: statistics.fmean(_all(found[n][:num_seeds], "last_gain")) for n in STUDENTS}
    learning = {name: max(gain / one, 0.0) for name, gain in rose.items()}
    return decide({name: shares[name][:num_seeds] for name in STUDENTS}, learning)


def describe(result: Mapping[str, Any]) -> str:
    """Return a table of what ``compare.json`` holds, and what it says."""
    found = _by_name(result)
    shares, verdict, plan = _shares(found), decided(result), result["plan"]
    if verdict is None:
        return f"{_table(found, shares)}\n\nNo seed is finished."
    lines = [_table(found, shares), "", _sentence(verdict, plan["history"])]
    num_seeds = min(len(found[name]) for name in STUDENTS)
    if verdict.best >= LEARNED and verdict.seeds_needed != num_seeds:
        lines.append(_advice(verdict, result["students"], num_seeds))
    best = max(shares[HISTORY], shares[LSTM], key=statistics.fmean)
    gap = _interval([1.0 - share for share in best], ".1%")
    lines.append(f"Observability gap, what the best with memory lacks of the teacher: {gap}.")
    if all(name in shares for name in SEES_ALL):
        pairs = zip(*(shares[name] for name in SEES_ALL), strict=False)  # one may have a seed more
        bias = _interval([mlp - lstm for mlp, lstm in pairs], ".1%")
        lines.append(f"Memory bias, what an LSTM loses where nothing is hidden: {bias}.")
    if "looks_back" in result:
        lines.append(_reach(result))
    return "\n".join(lines)


def _by_name(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the statistics of the teacher and of the students of each kind, by seed."""
    found: dict[str, list[Mapping[str, Any]]] = {TEACHER: [result[TEACHER]]}
    for student in result["students"]:
        found.setdefault(student["name"], []).append(student)
    return found


def _shares(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Return mean returns as shares of the teacher's; below 0 a lower one is worth less, too."""
    one = found[TEACHER][0]["mean_return"]
    return {
        name: [1.0 + (each["mean_return"] - one) / abs(one) for each in of]
        for name, of in found.items()
    }


def _sentence(verdict: Verdict, history: int) -> str:
    """Return the verdict as a sentence."""
    if verdict.best < LEARNED:
        return (
            f"Not decided: the best student has {verdict.best:.1%} of the teacher's return and may"
            " still be learning: begin again with more --minutes."
        )
    gain = f"it gains {verdict.memory} of the teacher's return"
    steps = f"{history} steps of history"
    lstm = f"the LSTM gains {verdict.lstm} over them"
    if verdict.name == ENOUGH:
        return f"History is enough: memory pays, {gain}, and {steps} do as well, {lstm}."
    if verdict.name == PAYS:
        then = f"{steps} are not enough" if verdict.lstm.counts else f"{OPEN} whether {steps} do"
        return f"Memory pays: {gain}. {then[0].upper()}{then[1:]}: {lstm}."
    return f"{verdict.name[0].upper()}{verdict.name[1:]}: {gain}."


def _advice(verdict: Verdict, students: Sequence[Mapping[str, Any]], num_seeds: int) -> str:
    """Return what would decide that which is open."""
    if verdict.seeds_needed is None:
        rose = ", ".join(f"{name} {share:.1%}" for name, share in verdict.learning.items())
        return (
            f"{MOST_SEEDS} seeds would not decide that. In the last quarter of training students"
            f" still gained, {rose}: if that is much, begin again with more --minutes."
        )
    minutes = sum(each["seconds"] for each in students) / num_seeds / 60.0
    return (
        f"About {math.ceil(minutes * (verdict.seeds_needed - num_seeds))} more minutes would decide"
        f" that, if the means stay: --resume --seeds {verdict.seeds_needed}."
    )


def _reach(result: Mapping[str, Any]) -> str:
    """Return how far back the LSTM looks, and what that says for ``gradient_length``."""
    steps, gradient_length = result["looks_back"], result["plan"]["gradient_length"]
    if steps == 0:
        return "The LSTM's memory is not used."
    advice = (
        f"gradient_length {gradient_length} covers it"
        if steps < gradient_length
        else f"no less than the gradient, so try --gradient-length {2 * steps}"
    )
    seconds = f", {steps * step:.2g} s" if (step := result[TEACHER]["step_seconds"]) else ""
    return f"The LSTM looks back {steps} steps{seconds}: {advice}."


def _table(
    found: Mapping[str, Sequence[Mapping[str, Any]]], shares: Mapping[str, Sequence[float]]
) -> str:
    """Return a table with a row for the teacher and for each kind of student."""
    rows = []
    for name, of in found.items():
        row = {"": name, "seeds": str(len(of)), "return": _interval(_all(of, "mean_return"))}
        if name == TEACHER:
            row |= {
                "seeds": "",
                "return": _shown(of[0]["mean_return"], *of[0]["confidence_interval"]),
            }
        row["of the teacher's"] = _interval(shares[name], ".1%")
        row["success"] = _interval(_all(of, "success_rate"), ".1%")
        row["falls"] = _interval([1.0 - share for share in _all(of, "timed_out")], ".1%")
        row["jitter"] = _interval(_all(of, "jitter"))
        rows.append(row)
    names = [name for name in rows[0] if name == "" or any(row[name] for row in rows)]
    lines = [dict(zip(names, names, strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in names}
    return "\n".join("  ".join(line[n].ljust(widths[n]) for n in names).rstrip() for line in lines)


def _all(results: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [each[name] for each in results if name in each]


def _interval(values: Sequence[float], form: str = ".3g") -> str:
    """Return the mean of values by seed, with its interval if there are two; empty for none."""
    if len(values) > 1:
        return _shown(*mean_and_interval(values), form)
    return format(values[0], form) if values else ""


def _shown(mean: float, low: float, high: float, form: str = ".3g") -> str:
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"
