"""What the session promises beside the update itself: plans leave everything as it was."""

import copy

import pytest
import torch
from rsl_rl.models import RNNModel
from support.fine_tuning import make_fine_tuned
from support.helpers import (
    make_distillation,
    make_ppo,
    roll_out,
    roll_out_ppo,
)
from support.inside import start_states, trained_parameters

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.hidden_state import as_tensors

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

CASES = {
    "distillation": (
        lambda **o: make_distillation(TbpttDistillation, 6, 4, gradient_length=2, **o),
        roll_out,
    ),
    "distillation, mini-batches and memory": (
        lambda **o: make_distillation(
            TbpttDistillation, 6, 4, gradient_length=2, num_mini_batches=3, buffer_rollouts=2, **o
        ),
        roll_out,
    ),
    "PPO": (lambda **o: make_ppo(TbpttPPO, 6, 4, gradient_length=2, **o), roll_out_ppo),
    "PPO, MLP": (lambda **o: make_ppo(TbpttPPO, 6, 4, "mlp", "mlp", **o), roll_out_ppo),
}


def everything(algorithm):
    """Return all that a plan might change: models, states, optimiser, storage, random numbers."""
    transaction = algorithm.transaction
    states = [as_tensors(m.get_hidden_state()) for m in transaction.stateful_models]
    return copy.deepcopy(
        [
            [module.state_dict() for module in transaction.modules],
            [optimizer.state_dict() for optimizer in transaction.optimizers],
            states,
            start_states(algorithm),
            {
                k: v
                for k, v in vars(algorithm.storage).items()
                if isinstance(v, (torch.Tensor, int))
            },
            algorithm.storage.distribution_params if "rl" in algorithm.storage.training_type else 0,
            torch.get_rng_state(),
        ]
    )


def assert_equal(left, right):
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert_equal(value, right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert left == right


@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_memory_plan_leaves_everything_as_it_was(case, updated):
    make, play = CASES[case]
    algorithm = make()
    play(algorithm, 0)
    if updated:
        algorithm.update()
        play(algorithm, 1)
    before = everything(algorithm)
    algorithm.memory_plan()
    assert_equal(everything(algorithm), before)
    assert all(p.grad is None for p in trained_parameters(algorithm))


class FailingInReplay(RNNModel):
    """A model of one's own whose forward pass fails in the middle of an update."""

    calls = 0

    def forward(self, obs, *args, **kwargs):
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls == 3:
                raise ArithmeticError("no memory left")
        return super().forward(obs, *args, **kwargs)


@pytest.mark.parametrize(
    ("case", "role"), [("distillation", "student"), ("PPO", "actor"), ("PPO", "critic")]
)
def test_a_replay_that_fails_leaves_the_states_of_the_rollout(case, role):
    make, play = CASES[case]
    failing = make(num_micro_batches=2)
    getattr(failing, role).__class__ = FailingInReplay
    rebuilt = type(failing)(
        *(m for m in failing.transaction.stateful_models if isinstance(m, torch.nn.Module)),
        failing.storage,
        gradient_length=2,
        num_micro_batches=2,
    )
    play(rebuilt, 0)
    before = [t.clone() for t in as_tensors(getattr(rebuilt, role).get_hidden_state())]
    with pytest.raises(ArithmeticError, match="no memory left"):
        rebuilt.update()
    assert_equal(list(as_tensors(getattr(rebuilt, role).get_hidden_state())), before)
    play(rebuilt, 1)
    assert rebuilt.update()["skipped_updates"] == 0.0


def test_what_fails_once_the_steps_are_taken_undoes_them_too(monkeypatch):
    make, play = CASES["distillation, mini-batches and memory"]
    algorithm = make()
    for seed in range(2):
        play(algorithm, seed)
        if seed == 0:
            algorithm.update()
    before = everything(algorithm)
    reset, failed = algorithm.student.reset, []

    def failing(*args, **kwargs):
        if not failed:
            failed.append(1)
            raise ArithmeticError("no memory left")
        reset(*args, **kwargs)

    monkeypatch.setattr(algorithm.student, "reset", failing)
    with pytest.raises(ArithmeticError, match="no memory left"):
        algorithm.update()
    assert algorithm.storage.step == 0
    for now, then in zip(everything(algorithm)[:3], before[:3], strict=True):
        assert_equal(now, then)
    play(algorithm, 2)
    assert "behavior" in algorithm.update()


def test_a_plan_is_made_of_whole_rollouts():
    algorithm = make_fine_tuned()

    def ask(step=0, obs=None, rewards=None):
        with pytest.raises(ValueError, match=r"memory_plan\(\) was called at step \d"):
            algorithm.memory_plan()

    ask()
    roll_out_ppo(algorithm, 0, on_step=lambda *args: ask(*args) if args[0] in (1, 5) else None)
    before = algorithm.memory_plan().peak(1)
    algorithm.update()
    roll_out_ppo(algorithm, 1)
    assert algorithm.memory_plan().peak(1) == pytest.approx(before, rel=0.05)
