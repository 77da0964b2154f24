"""The settings that scripts/what_matters.py varies one at a time."""

import pytest
import yaml

from scripts.what_matters import CFG, row, train, with_values

SETTINGS = yaml.safe_load(CFG.read_text(encoding="utf-8"))


def test_a_row_replaces_values_of_its_base_and_leaves_the_base_as_it_is():
    base = {"algorithm": {"learning_rate": 1.0, "gamma": 0.9}}
    merged = with_values(base, {"algorithm.learning_rate": 2.0, "num_envs": 3})
    assert merged == {"algorithm": {"learning_rate": 2.0, "gamma": 0.9}, "num_envs": 3}
    assert base == {"algorithm": {"learning_rate": 1.0, "gamma": 0.9}}
    with pytest.raises(KeyError, match="algorithn"):
        with_values(base, {"algorithn.gamma": 1.0})


@pytest.mark.parametrize("name", ["PPO, default", "distillation, default"])
def test_a_training_of_a_row_returns_its_reward(name):
    cfg = with_values(SETTINGS["bases"][name.split(", ")[0]], SETTINGS["rows"][name])
    done, reward = train(cfg | {"num_envs": 8}, 2, 2, seed=1)
    assert done in (None, 2)
    assert -1.0 <= reward <= 1.0


def test_iterations_have_a_mean_only_if_every_seed_is_done():
    assert row("a", [(2, 1.0), (4, 0.9)]).startswith("| a | 2 of 2 | 3.0 | -9.7 to 15.7 | 0.95 |")
    assert row("a", [(2, 1.0), (None, 0.0)]).startswith("| a | 1 of 2 | - | - | 0.50 |")
