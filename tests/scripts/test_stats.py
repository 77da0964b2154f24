"""`make stats` counts correctly, and nothing grows beyond the table in CONTRIBUTING.md."""

from scripts.ci.stats import ROOT, sizes, table

GROWTH = 1.02
"""How far a size may exceed the table's; `python -m scripts.ci.stats --write` renews that."""
LONGEST_FUNCTION = 60

ALGORITHM = '''"""Two lines
of docstring."""

import torch  # one, and a comment

# a comment
class TbpttPPO:
    """Fourteen source lines."""

    gamma = 0.9
    """An attribute's docstring."""

    def act(self): return """no
docstring"""

    @property
    def _rate(self) -> float:
        if self:
            def nested(obs: torch.Tensor) -> None:
                ...
'''
FILES = {
    "rsl_tbptt/__init__.py": "",
    "rsl_tbptt/algorithms/ppo.py": ALGORITHM,
    "rsl_tbptt/functions.py": "def short() -> None: ...\n",
    "scripts/one.py": "x = [\n    1,\n\n    2,\n]\n",
    "docs/howto/page.md": "# Two words\n",
}


def test_counts_are_those_by_hand(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert table(tmp_path) == [
        ("lines of code, rsl_tbptt", "11"),
        ("lines of code, rsl_tbptt/algorithms", "10"),
        ("lines of code, scripts", "4"),
        ("Python files, rsl_tbptt", "3"),
        ("words, docs", "3"),
        ("longest class", "14, algorithms/ppo.py:TbpttPPO"),
        ("longest function", "4, algorithms/ppo.py:TbpttPPO._rate"),
        ("longest function", "2, algorithms/ppo.py:TbpttPPO.act"),
        ("longest function", "2, algorithms/ppo.py:TbpttPPO._rate.nested"),
    ]


def grown(told, measured):
    """Return the sizes that exceed the told ones."""
    return {name: size for name, size in measured.items() if size > GROWTH * told.get(name, size)}


def test_no_size_grows():
    told = sizes((ROOT / "CONTRIBUTING.md").read_text())
    page = "<!-- stats -->\n" + "\n".join(f"| {name} | {n} |" for name, n in table(ROOT))
    measured = sizes(page)
    assert {"lines of code, rsl_tbptt", "lines of code, tests", "longest class"} <= told.keys()
    assert grown(told, measured) == {}
    assert measured["longest function"] <= LONGEST_FUNCTION


def test_growth_is_detected():
    told = sizes(
        "| a | 9 |\n<!-- stats -->\n| a | 100 |\n| longest b | 7, x |\n| longest b | 5, y |"
    )
    assert told == {"a": 100, "longest b": 7}
    assert grown(told, {"a": 102, "new": 9}) == {}
    assert grown(told, {"a": 103, "longest b": 8}) == {"a": 103, "longest b": 8}
