"""The rows of the benchmark, which rows.yaml lists: what is measured, how often, with what aim."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from rsl_tbptt.bench.agents import described
from rsl_tbptt.bench.case import Case

FILE = Path(__file__).with_name("rows.yaml")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    name: str
    case: Case
    measure: Literal["speed", "cost", "memory", "agent", "plan", "steps"] = "speed"
    """Time of an update beside rsl_rl's; time of ours beside that of ours in another case; or
    memory of a process beside that of rsl_rl's, of an update beside ours in another case. Of
    agents.yaml also: time, memory and plan of an agent; the plan alone; the share of what is done
    step by step."""
    beside: dict[str, Any] = field(default_factory=dict)
    """What the other case has in place of the values of ``case``."""
    pairs: int = 2
    """Updates of each library: few where one of them takes seconds."""
    target: float | None = None
    """For speed the ratio to reach; otherwise the ratio to stay below."""
    agent: str = ""
    """Whose case this is, of agents.yaml."""
    figure_only: bool = False
    """A further point of a figure, not of the table."""

    def reached(self, ratio: float) -> bool | None:
        """Return whether a ratio is as good as the target, None without a target."""
        if self.target is None:
            return None
        return ratio >= self.target if self.measure == "speed" else ratio <= self.target


def select(rows: Sequence[Row], part: str, device: str, *, quick: bool = False) -> list[Row]:
    """Keep the rows whose name contains ``part``.

    Args:
        rows: All rows.
        part: Part of a name.
        device: Where they are measured.
        quick: Whether rows of the same names are meant that take no time: to test only.

    Returns:
        The rows, on the device.

    Raises:
        ValueError: If there are none.
    """
    kept = [replace(r, case=replace(r.case, device=device)) for r in rows if part in r.name]
    if not kept:
        raise ValueError(f"--rows is {part!r}, expected a part of one of {[r.name for r in rows]}.")
    return [replace(r, case=tiny(r.case), pairs=2) for r in kept] if quick else kept


def tiny(case: Case) -> Case:
    """Return a case like another that takes no time."""
    return replace(
        case,
        # With one environment in a mini-batch rsl_rl's losses broadcast over the wrong axis.
        num_envs=max(case.num_envs // (32 * case.batches), 2) * case.batches,
        num_steps=case.num_steps // 8,
        gradient_length=case.gradient_length // 8,
        rnn_hidden_dim=8,
    )


def _read() -> Iterator[Row]:
    """Yield all rows of the file, variants included."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for fields in data["rows"]:
        variants, case = fields.pop("variants", False), Case(**fields.pop("case"))
        if fields.get("measure", "speed") != "speed":
            yield Row(case=case, **fields)
            continue
        name = fields.pop("name")
        for variant, of_case, of_row in data["variants"][: None if variants else 1]:
            yield Row(name=f"{name}-{variant}", case=replace(case, **of_case), **fields | of_row)


def rows_of_agents() -> Iterator[Row]:
    """Yield all agents of agents.yaml, and the further rows of some.

    Raises:
        ImportError: If Isaac Lab is missing.
    """
    data = yaml.safe_load(FILE.with_name("agents.yaml").read_text(encoding="utf-8"))
    agents = {entry.pop("name"): described(**entry) for entry in data["agents"]}
    for name, case in agents.items():
        yield Row(name=name, agent=name, case=case, measure="agent", pairs=1)
    for row in data["rows"]:
        yield Row(**row | {"case": replace(agents[row["agent"]], **row["case"])})


ROWS = tuple(_read())
