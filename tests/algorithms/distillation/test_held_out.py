"""Held-out environments: no loss and no buffer has them, and their log is that of the average."""

import copy
import math

import pytest
import torch
from support.cases import HEADS
from support.helpers import make_distillation, make_obs, parameters_of, roll_out, train
from support.inside import everything
from support.rank_processes import group, run_ranks
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import as_tensors

T, N = 6, 8
HELD_OUT, TRAINED = [3, 7], [0, 1, 2, 4, 5, 6]


def make(num_envs=N, num_steps=T, **options):
    chosen = {"gradient_length": 3, "held_out_envs": 2, **options}
    return make_distillation(TbpttDistillation, num_steps, num_envs, **chosen)


def names(options):
    """Return a test's name; functions would differ between processes."""
    return ", ".join(options) or "defaults"


@pytest.mark.parametrize(
    ("given", "num_envs", "number"),
    [(None, 255, 0), (None, 256, 8), (None, 4096, 82), (0, 4096, 0), (3, 16, 3), (9, 1, 0)],
)
def test_how_many_environments_are_held_out_and_which(given, num_envs, number):
    assert DistillationOptions(held_out_envs=given).num_held_out(num_envs) == number
    assert make().held_out.envs.tolist() == HELD_OUT
    assert make().held_out.trained.tolist() == TRAINED


@pytest.mark.parametrize("num_envs", [256, 400, 1000, 2000, 4096])
def test_not_all_held_out_environments_are_of_one_of_several_alternating_kinds(num_envs):
    held_out = make(num_envs, 1, gradient_length=1, held_out_envs=None).held_out.envs
    assert held_out.tolist() == sorted({*held_out.tolist()})
    assert all(len((held_out % kinds).unique()) > 1 for kinds in range(2, 9))


def test_weights_that_you_set_before_training_act_there():
    algorithm = make()
    with torch.no_grad():
        algorithm.student.mlp[-1].bias.add_(9.0)
    roll_out(algorithm, 0)
    assert (algorithm.storage.actions[:, HELD_OUT] > 5.0).all()


# What follows is the update.


def trained_on(algorithm, envs, is_compared):
    """Train on environments of two global rollouts; return some metrics and the parameters."""
    generator, results = torch.Generator().manual_seed(0), []
    for _ in range(2):
        obs = [make_obs(N, generator)[envs] for _ in range(T)]
        rewards, ended = torch.rand(2, T, N, generator=generator)[..., envs]
        with torch.inference_mode():
            for step in range(T):
                algorithm.act(obs[step])
                algorithm.process_env_step(obs[step], rewards[step], (ended < 0.4)[step].long(), {})
        metrics = algorithm.update()
        results += [v for name, v in metrics.items() if is_compared(name.partition("/")[0])]
    return torch.cat((torch.tensor(results), parameters_of(algorithm)))


@pytest.mark.usefixtures("float64_here")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"student": "mlp", "loss_type": "kl"},
        {"gradient_length": 4, "update_length": 2},
        {"loss_reduction": "sum", "tail": "drop", "gradient_length": 4},
        # The whole buffer in one mini-batch, because a random part would depend on the draws.
        {"buffer_rollouts": 2, "buffer_share": 100.0},
    ],
    ids=names,
)
def test_an_update_is_that_of_the_other_environments_alone(options):
    is_compared = lambda kind: kind not in {"held_out", "done_rate", "obs_scale"}  # noqa: E731
    found = trained_on(make(**options), [*range(N)], is_compared)
    expected = trained_on(make(len(TRAINED), held_out_envs=0, **options), TRAINED, is_compared)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"buffer_rollouts": 2},
        {"auxiliary": HEADS},
        {"student": "cnn-gru", "buffer_rollouts": 2},
    ],
    ids=names,
)
def test_nothing_that_held_out_environments_see_moves_a_parameter(options):
    def spoil(step, obs):
        for values in obs.values():
            values[HELD_OUT] = 1e6

    results = []
    for on_step in (None, spoil):
        algorithm = make(num_mini_batches=2, num_learning_epochs=2, **options)
        train(algorithm, *range(4), on_step=on_step)
        assert algorithm.metrics["skipped_updates"] == 0.0
        results.append(everything(algorithm))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_nan_in_a_held_out_environment_is_named_and_leaves_its_memory():
    def spoil(step, obs):
        obs["policy"][HELD_OUT[0]] = torch.nan

    algorithm = make()
    train(algorithm, 0)
    named = rf"observation group 'policy' of environments \[{HELD_OUT[0]}\]"
    with pytest.warns(UserWarning, match=named):
        train(algorithm, 1, on_step=spoil)
    assert all(each.isfinite().all() for each in as_tensors(algorithm.student.get_hidden_state()))
    train(algorithm, 2)
    assert algorithm.metrics["skipped_updates"] == 1.0
    assert all(map(math.isfinite, algorithm.metrics.values()))


@pytest.mark.parametrize("options", [{}, {"tail": "drop", "gradient_length": 4}], ids=names)
def test_the_average_acts_there_without_noise_and_its_state_continues(options):
    algorithm = make(learning_rate=0.1, weight_average=True, **options)
    train(algorithm, 0, 1)
    average, played = algorithm.get_policy(), copy.deepcopy(algorithm.get_policy())
    weights = [parameters_to_vector(each.parameters()) for each in (average, algorithm.student)]
    assert not torch.equal(*weights)

    def watch(step, obs):
        if step:  # the actions of the step before, for observations that were there
            assert torch.equal(algorithm.storage.actions[step - 1, HELD_OUT], played(before[0]))
            played.reset(algorithm.storage.dones[step - 1, HELD_OUT, 0])
        before[0] = obs[torch.tensor(HELD_OUT)].clone()

    before = [None]
    roll_out(algorithm, 2, on_step=watch)
    acted = as_tensors(hidden_state.clone(average.get_hidden_state()))
    algorithm.update()
    assert all(map(torch.equal, as_tensors(average.get_hidden_state()), acted))


def test_the_teacher_acts_in_no_held_out_environment():
    algorithm = make(teacher_action_share=1.0)
    with torch.inference_mode():
        actions = algorithm.act(make_obs(N))
    is_teacher = (actions == algorithm.transition.privileged_actions).all(1)
    assert is_teacher.nonzero().flatten().tolist() == TRAINED


# What follows is the log.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"student": "mlp"},
        {"buffer_rollouts": 2, "num_mini_batches": 2},
        {"gradient_length": 4, "update_length": 2},
    ],
    ids=names,
)
def test_loss_and_explained_variance_are_those_of_the_average(options):
    algorithm = make(learning_rate=0.1, num_learning_epochs=2, **options)
    for parameter in algorithm.teacher.parameters():
        parameter.data *= 3.0  # labels that vary by more than the student is wrong
    train(algorithm, 0)

    roll_out(algorithm, 1)
    stored = algorithm.storage
    labels, means = stored.privileged_actions[:, HELD_OUT], stored.actions[:, HELD_OUT].clone()
    algorithm.update()
    errors, metrics = (means - labels).square(), algorithm.metrics
    share = 1 - errors.mean((0, 1)).sum() / labels.var((0, 1), correction=0).sum()
    assert metrics["held_out/explained_variance"] == pytest.approx(float(share), abs=1e-4)
    assert -0.9 < share < 0.9
    assert metrics["held_out/behavior"] == pytest.approx(float(errors.mean()), rel=1e-4)


def live(algorithm, rewards, ends):
    """Live through rollouts of 2 steps; return ``held_out/return`` after each, or None.

    Args:
        algorithm: The algorithm, of 4 environments of which 1 and 3 are held out.
        rewards: Rewards of the two at each step.
        ends: Whether episodes of the two end at each step.
    """
    found = []
    for step, (own, ended) in enumerate(zip(rewards, ends, strict=True)):
        with torch.inference_mode():
            algorithm.act(obs := make_obs(4))
            given = torch.tensor([100.0, own[0], 100.0, own[1]])
            dones = torch.tensor([1, ended[0], 0, ended[1]])
            algorithm.process_env_step(obs, given, dones, {})
        if step % 2:
            algorithm.update()
            found.append(algorithm.metrics.get("held_out/return"))
    return found


REWARDS = [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60), (7, 70), (8, 80), (9, 90), (1, 2)]
ENDS = [(1, 0), (0, 0), (0, 1), (1, 0), (1, 0), (0, 0), (0, 1), (0, 0), (1, 0), (0, 0)]


def test_returns_by_hand_continue_after_a_resume():
    """Of the first one 2 + 3 + 4, then 5, then 6 + 7 + 8 + 9; of the second one 40 + ... + 70."""
    first, resumed, anew = (make(4, 2, gradient_length=2) for _ in range(3))
    assert live(first, REWARDS[:4], ENDS[:4]) == [None, None]
    resumed.resume(first.running_state())
    anew.resume({})
    for algorithm in (first, resumed):
        assert live(algorithm, REWARDS[4:], ENDS[4:]) == [None, (5 + 220) / 2, (30 + 220) / 2]
    assert live(anew, REWARDS[4:], ENDS[4:]) == [None] * 3


def test_an_undone_update_leaves_returns_to_continue():
    algorithm = make(4, 2, gradient_length=2)
    live(algorithm, REWARDS[:2], ENDS[:2])
    bias = algorithm.student.get_parameter("mlp.0.bias").data
    bias[0] = torch.nan  # undoes the next update
    with pytest.warns(UserWarning, match="An update"):
        live(algorithm, REWARDS[2:4], ENDS[2:4])
    bias[0] = 0.0
    assert live(algorithm, REWARDS[4:], ENDS[4:]) == [None, (5 + 220) / 2, (30 + 220) / 2]


# What follows is several ranks.


def run_rank(rank, folder):
    with group(rank, (N // 2, N // 2), folder) as share:
        algorithm = make(N // 2, held_out_envs=1, multi_gpu_cfg=share.cfg)
        envs = [*range(share.first, share.last)]
        results = trained_on(algorithm, envs, "held_out".__eq__)
        assert "held_out/return" in algorithm.metrics
    torch.save(results, f"{folder}/rank{rank}.pt")


@pytest.mark.long
def test_two_ranks_train_and_log_as_one_process(tmp_path):
    run_ranks(run_rank, (str(tmp_path),), 2)
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        expected = trained_on(make(), [*range(N)], "held_out".__eq__)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
