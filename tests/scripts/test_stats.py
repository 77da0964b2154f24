"""`make stats` counts what it says, on a tree small enough to count by hand."""

import pytest

from scripts.ci import stats

ALGORITHM = '''"""Two lines
of docstring."""

import torch  # one, and a comment: noqa is no suppression here

# a comment


class TbpttPPO:
    """Fourteen source lines."""

    gamma = 0.9
    """An attribute's docstring."""

    def act(self): return """no
docstring"""

    @property
    def _rate(self) -> float:
        def nested(obs: torch.Tensor) -> None:
            ...
        return 1.0  # pyright: ignore[reportReturnType]
'''
FUNCTIONS = '''
from tensordict import TensorDict
from torch import Tensor


def named(obs: Tensor) -> None:  # noqa: D103
    """Take obs of any shape."""


def of_letters(obs: Tensor) -> None:
    """Take obs of (N * T, D)."""


def not_named(*obs: "Tensor") -> None:
    """Take (some) obs."""
    print("# noqa is no comment")

    def nested(obs: Tensor) -> None: ...


class Model:
    def forward(self, *, obs: dict[str, Tensor] | None): ...

    def _private(self) -> Tensor: ...

    def group(self, obs: TensorDict) -> TensorDict: ...


if True:

    def returned() -> Tensor:  # type: ignore  # noqa
        ...
'''


@pytest.fixture
def tree(tmp_path):
    """A checkout with a package of two files, and a script."""
    files = {
        "rsl_tbptt/__init__.py": "",
        "rsl_tbptt/algorithms/ppo.py": ALGORITHM,
        "rsl_tbptt/functions.py": FUNCTIONS,
        "scripts/one.py": "x = [\n    1,\n\n    2,\n]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_counts_are_those_by_hand(tree):
    counted = stats.lines_by_folder(tree)
    assert counted == {"rsl_tbptt": 24, "rsl_tbptt/algorithms": 10, "scripts": 4}
    classes = stats.longest_of(tree, stats.ast.ClassDef)
    assert classes == ["14, algorithms/ppo.py:TbpttPPO", "6, functions.py:Model"]
    longest = ["5, functions.py:not_named", "4, algorithms/ppo.py:TbpttPPO._rate"]
    functions = stats.longest_of(tree, stats.Function)
    assert functions[:2] == longest
    assert len(functions) == stats.LONGEST
    counted = stats.suppressions(tree)
    assert counted == {"noqa": 2, "type: ignore": 1, "pyright: ignore": 1, "all": 4}
    without = ["functions.py:not_named", "functions.py:Model.forward", "functions.py:returned"]
    assert stats.without_shapes(tree) == without


def test_one_table(tree, monkeypatch, capsys):
    monkeypatch.setattr(stats, "ROOT", tree)
    monkeypatch.setattr("sys.argv", ["stats"])
    stats.main()
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["what", "number"]
    assert set(rule) == set("|-")
    cells = dict([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    assert cells["lines of code, rsl_tbptt"] == "24"
    assert cells["suppressions in rsl_tbptt, noqa"] == "2, 83.3 per 1000 lines of code"
    assert cells["public functions with tensors and no shape"] == "3"
