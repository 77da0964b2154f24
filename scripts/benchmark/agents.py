"""The agents that others train, which agents.yaml lists, as rows of the benchmark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rsl_tbptt.bench.agents import Widths, default_distillation, isaac_lab_case, widths_of
from rsl_tbptt.bench.case import Case
from scripts.benchmark.rows import Row

FILE = Path(__file__).with_name("agents.yaml")


def read_rows() -> Iterator[Row]:
    """Yield all agents and the further rows of some.

    Raises:
        ImportError: If Isaac Lab is missing.
    """
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    agents = {agent["name"]: _case(**agent) for agent in data["agents"]}
    for name, case in agents.items():
        yield Row(name=name, agent=name, case=case, measure="agent", pairs=1)
    for row in data["rows"]:
        yield Row(**row | {"case": replace(agents[row["agent"]], **row["case"])})


def _case(
    name: str,
    task: str = "",
    agent: str = "",
    widths: str | dict[str, int] = "",
    defaults: dict[str, int] | None = None,
    case: dict[str, Any] | None = None,
) -> Case:
    """Make the case that an entry describes in one of three ways."""
    if case or defaults:
        return Case(**case) if case else default_distillation(**(defaults or {}))
    known = widths_of(widths) if isinstance(widths, str) else Widths(**widths)
    return isaac_lab_case(task, agent, known)
