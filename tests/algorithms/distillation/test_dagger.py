"""DAgger's mixed policy: the actor is drawn again for each rollout, the labels stay the same."""

import copy

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import make_distillation, parameters_of, roll_out

from rsl_tbptt.algorithms import TbpttDistillation

NUM_STEPS, NUM_ENVS = 6, 10


def make(algorithm_class: type[Distillation] = TbpttDistillation, share=None, **options):
    if share is not None:
        options["teacher_action_share"] = share
    return make_distillation(algorithm_class, NUM_STEPS, NUM_ENVS, gradient_length=3, **options)


def act_only(algorithm, **options):
    """Fill the storage and return the actions that went to the environments, (T, N, A)."""
    executed, act = [], algorithm.act
    algorithm.act = lambda obs: (executed.append(act(obs).clone()), executed[-1])[1]
    roll_out(algorithm, 0, **options)
    algorithm.act = act
    return torch.stack(executed)


@pytest.mark.parametrize(("share", "count"), [(0.34, 3), (0.36, 4), (1.0, 10)])
def test_exactly_the_share_executes_the_label_and_the_others_the_students_sample(share, count):
    algorithm = make(share=share)
    student = copy.deepcopy(algorithm.student)
    executed, storage = act_only(algorithm), algorithm.storage
    is_label = (executed == storage.privileged_actions).all(-1)
    assert torch.equal(executed, storage.actions)
    assert is_label.sum(1).tolist() == [count] * NUM_STEPS
    assert torch.equal(is_label, is_label[:1].expand_as(is_label))  # the same for the whole rollout
    torch.manual_seed(0)
    torch.randperm(NUM_ENVS)
    with torch.inference_mode():
        for step, others in enumerate(~is_label):
            expected = student(storage.observations[step], stochastic_output=True)
            assert torch.equal(executed[step][others], expected[others])
            student.reset(storage.dones[step].view(-1))


@pytest.mark.parametrize(
    ("teacher", "student", "loss_type"),
    [("mlp", "lstm", "mse"), ("lstm", "gru", "kl"), ("lstm", "mlp", "mse")],
)
def test_the_actor_changes_neither_labels_nor_states_nor_the_update(teacher, student, loss_type):
    models = {"teacher": teacher, "student": student, "loss_type": loss_type}
    mixed, plain = make(share=0.5, **models), make(**models)
    for seed in range(3):  # the observations do not depend on the actions
        for algorithm in (mixed, plain):
            roll_out(algorithm, seed)
        assert torch.equal(mixed.storage.privileged_actions, plain.storage.privileged_actions)
        assert not torch.equal(mixed.storage.actions, plain.storage.actions)
        got, want = mixed.student.get_hidden_state(), plain.student.get_hidden_state()
        assert (got is None) == (student == "mlp")
        if want is not None:
            assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
        metrics = mixed.update()
        assert metrics.pop("teacher_action_share") == 0.5
        assert metrics == plain.update()
        assert torch.equal(parameters_of(mixed), parameters_of(plain))


@pytest.mark.parametrize(("last_update", "counts"), [(None, [6] * 3), (3, [6, 4, 2, 0, 0])])
def test_the_share_falls_linearly_over_the_updates(last_update, counts):
    algorithm = make(share=0.6, teacher_action_updates=last_update)
    for seed, count in enumerate(counts):
        roll_out(algorithm, seed)
        is_label = algorithm.storage.actions == algorithm.storage.privileged_actions
        assert is_label.all(-1).all(0).sum() == count
        assert algorithm.update()["teacher_action_share"] == pytest.approx(count / NUM_ENVS)


def test_a_label_that_is_nan_is_not_executed():
    algorithm = make(share=1.0)

    def spoil(step, obs):
        obs["state"][3] = float("nan")

    assert act_only(algorithm, on_step=spoil).isfinite().all()
    assert algorithm.storage.privileged_actions[:, 3].isnan().all()
