"""Errors of auxiliary heads in an evaluation, compared with those of a recording."""

import pytest
import torch
from support.helpers import make_distillation, roll_out
from support.inside import networks_of_heads

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.models.one_step import recorded_latents
from rsl_tbptt.tools.simulate.policies import WatchedHeads

DELAY = 2
HEADS = {
    "velocity": {"target": "state", "columns": [1, 3], "hidden_dims": [4]},
    "later": {"target": "state", "delay": DELAY},
    "contact": {"target": "state", "columns": [0], "loss": "bce"},
}


def test_errors_are_those_of_the_first_episodes():
    torch.manual_seed(0)
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, student="lstm", gradient_length=3, auxiliary=HEADS
    )
    roll_out(algorithm, 0)
    algorithm.update()
    policy, saved = algorithm.student.eval(), algorithm.save()["rsl_tbptt"]["auxiliary"]
    rows = algorithm.storage.observations
    dones = torch.zeros(6, 4, dtype=torch.bool)
    dones[1, 0] = dones[3, 2] = dones[4, 2] = True
    with recorded_latents(policy) as latents, torch.inference_mode():
        watched = WatchedHeads(policy, saved, rows[0], latents)
        watched.reset()
        actions = []
        for step in range(6):
            actions.append(watched(rows[step]))
            watched.reset(dones[step])
        # The same again, by hand.
        policy.reset()
        latents.clear()
        for step in range(6):
            assert torch.equal(policy(rows[step]), actions[step])
            policy.reset(dones[step])
        seen = torch.stack(latents)
        predicted = [head(seen).double() for head in networks_of_heads(algorithm)]
    assert "get_latent" not in vars(policy)
    lasts = [2, 6, 4, 6]  # steps of the first episodes
    state = rows["state"].double()
    expected = {
        "velocity": [
            (predicted[0][t, n], state[t, n, [1, 3]]) for n in range(4) for t in range(lasts[n])
        ],
        "later": [
            (predicted[1][t - DELAY, n], state[t, n])
            for n in range(4)
            for t in range(DELAY, lasts[n])
        ],
        "contact": [
            (predicted[2][t, n].sigmoid(), state[t, n, [0]])
            for n in range(4)
            for t in range(lasts[n])
        ],
    }
    summary = watched.summary()
    assert list(summary) == list(HEADS)
    for name, pairs in expected.items():
        squares = torch.stack([(said - true).square() for said, true in pairs]).mean(0)
        assert summary[name]["rmse_by_column"] == pytest.approx(squares.sqrt().tolist())
        assert summary[name]["rmse"] == pytest.approx(squares.mean().sqrt().item())


def test_targets_that_an_evaluation_does_not_see_are_left_out():
    algorithm = make_distillation(
        TbpttDistillation,
        6,
        4,
        student="mlp",
        gradient_length=3,
        auxiliary={"latent": {"target": "teacher:mlp.0"}, "velocity": {"target": "state"}},
    )
    saved = algorithm.save()["rsl_tbptt"]["auxiliary"]
    obs = algorithm.storage.observations[0]
    for given, heads, expected in (
        (obs, saved, ["velocity"]),
        (obs.exclude("state"), saved, []),
        (obs, {}, []),
    ):
        with recorded_latents(algorithm.student) as latents, torch.inference_mode():
            watched = WatchedHeads(algorithm.student, heads, given, latents)
            assert watched.summary() == {}  # before the first step
            watched(given)
        assert list(watched.summary()) == expected
