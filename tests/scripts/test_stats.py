"""`make stats` counts correctly, on a tree that is small enough to count by hand."""

from scripts.ci.stats import table

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
}


def test_counts_are_those_by_hand(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert table(tmp_path) == [
        ("lines of code, rsl_tbptt", "11"),
        ("lines of code, rsl_tbptt/algorithms", "10"),
        ("lines of code, scripts", "4"),
        ("longest class", "14, algorithms/ppo.py:TbpttPPO"),
        ("longest function", "4, algorithms/ppo.py:TbpttPPO._rate"),
        ("longest function", "2, algorithms/ppo.py:TbpttPPO.act"),
        ("longest function", "2, algorithms/ppo.py:TbpttPPO._rate.nested"),
    ]
