"""Teachers without --resume, fine-tuning of a student, and the state of a resumed run."""

from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from support.older_checkpoints import as_policy
from support.policy_era import (
    make_actor_critic,
    make_distillation,
    make_ppo,
    make_student_teacher,
    parameters_of,
    roll_out,
)

from rsl_tbptt.compat.checkpoints import as_models
from rsl_tbptt.compat.rsl_rl3 import model_of
from rsl_tbptt.integrations.rsl_rl_v3 import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

SEES_STATE = {"policy": ["state"], "critic": ["state"]}
SIZES: dict[str, Any] = {"num_steps": 6, "num_envs": 4}


def checkpoint_of(algorithm):
    """Return a checkpoint as rsl_rl 3's runner saves it."""
    return {
        "model_state_dict": algorithm.policy.state_dict(),
        "optimizer_state_dict": algorithm.optimizer.state_dict(),
        "iter": 7,
        "infos": None,
    }


def load(algorithm, checkpoint):
    """Load as rsl_rl 3's runner does; return whether training resumes."""
    resumes = algorithm.policy.load_state_dict(checkpoint["model_state_dict"])
    if resumes:
        algorithm.optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    return resumes


def saved(tmp_path, checkpoint):
    torch.save(checkpoint, tmp_path / "model_7.pt")
    return str(tmp_path / "model_7.pt")


def teacher_run(kind="mlp", **policy_kwargs):
    """Return the checkpoint of a PPO run whose actor has the teacher's observations."""
    kwargs = {"obs_groups": SEES_STATE, "seed": 5, **policy_kwargs}
    policy = make_actor_critic(kind, **kwargs)
    return {"model_state_dict": policy.state_dict(), "iter": 7, "infos": None}


def trained(make, algorithm_class, updates=2, **options):
    algorithm = make(algorithm_class, **SIZES, **options)
    for seed in range(updates):
        roll_out(algorithm, seed)
        algorithm.update()
    return algorithm


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("roles", [("actor", "critic"), ("student", "teacher")])
def test_a_policy_has_the_names_that_rsl_rl_5_models_are_made_from(roles, kind):
    normalized: dict[str, Any] = {f"{role}_obs_normalization": True for role in roles}
    make = make_actor_critic if "actor" in roles else make_student_teacher
    policy = make(kind, **normalized)
    models = {role: model_of(policy, role) for role in roles}
    assert as_policy(models)["model_state_dict"].keys() == policy.state_dict().keys()
    converted, _ = as_models({"model_state_dict": policy.state_dict()})
    for role, model in models.items():
        assert converted[f"{role}_state_dict"].keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("kind", "checkpoint_kwargs", "policy_kwargs", "activation", "message"),
    [
        ("lstm", {}, {}, "elu", "'policy.teacher_recurrent' to True"),
        ("mlp", {}, {"teacher_obs_normalization": True}, "elu", "obs_normalization' to False"),
        ("mlp", {"actor_hidden_dims": [8, 8]}, {}, "elu", "'policy.teacher_hidden_dims'"),
        ("mlp", {}, {}, "relu", r"teacher\.activation is ELU, expected ReLU"),
    ],
)
def test_the_error_for_a_teacher_that_does_not_fit_names_the_setting(
    kind, checkpoint_kwargs, policy_kwargs, activation, message, tmp_path
):
    file = saved(tmp_path, teacher_run(kind, **checkpoint_kwargs))
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text(f"policy: {{activation: {activation}}}")
    algorithm = make_distillation(
        TbpttDistillation, **SIZES, policy_kwargs=policy_kwargs, teacher_checkpoint=file
    )
    with pytest.raises(ValueError, match=message):
        roll_out(algorithm, 0)


def test_a_student_is_resumed_without_the_file_of_its_teacher():
    options: dict[str, Any] = {"teacher_checkpoint": "moved.pt"}
    resumed = make_distillation(TbpttDistillation, **SIZES, **options)
    load(resumed, checkpoint_of(trained(make_distillation, TbpttDistillation)))
    assert resumed.policy.loaded_teacher is True
    roll_out(resumed, 0)
    fresh = make_distillation(TbpttDistillation, **SIZES, **options)
    with pytest.raises(ValueError, match=r"'moved\.pt' does not exist"):
        roll_out(fresh, 0)


@pytest.mark.parametrize(
    ("make", "ours", "stock"),
    [(make_distillation, TbpttDistillation, Distillation), (make_ppo, TbpttPPO, PPO)],
)
def test_rsl_rl_reads_our_checkpoint_and_we_read_its(make, ours, stock):
    for writer_class, reader_class in ((ours, stock), (stock, ours)):
        writer, reader = trained(make, writer_class), make(reader_class, **SIZES)
        assert load(reader, checkpoint_of(writer))
        assert torch.equal(parameters_of(reader), parameters_of(writer))
        moments = [
            torch.stack([s["exp_avg"].norm() for s in algorithm.optimizer.state.values()])
            for algorithm in (reader, writer)
        ]
        torch.testing.assert_close(*moments)
        roll_out(reader, 0)
        reader.update()


def test_the_schedule_of_the_teachers_actions_continues_after_a_resume():
    options: dict[str, Any] = {"teacher_action_share": 1.0, "teacher_action_updates": 4}
    resumed = make_distillation(TbpttDistillation, **SIZES, **options)
    load(resumed, checkpoint_of(trained(make_distillation, TbpttDistillation, **options)))
    roll_out(resumed, 0)
    assert resumed.update()["teacher_action_share"] == 0.5
    fresh = make_distillation(TbpttDistillation, **SIZES, **options)
    load(fresh, checkpoint_of(trained(make_distillation, Distillation)))
    roll_out(fresh, 0)
    assert fresh.update()["teacher_action_share"] == 1.0


def test_an_adaptive_rate_continues_after_a_resume():
    for schedule, rate in (("adaptive", 2e-4), ("fixed", 1e-3)):
        options: dict[str, Any] = {"schedule": schedule}
        writer = trained(make_ppo, TbpttPPO, **options)
        writer.optimizer.param_groups[0]["lr"] = 2e-4
        resumed = make_ppo(TbpttPPO, **SIZES, **options)
        load(resumed, checkpoint_of(writer))
        assert resumed.learning_rate == rate


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_distilled_student_becomes_the_actor(kind):
    student = trained(
        make_distillation,
        TbpttDistillation,
        student=kind,
        policy_kwargs={"student_obs_normalization": True},
    )
    algorithm = make_ppo(
        TbpttPPO,
        **SIZES,
        kind=kind,
        policy_kwargs={"actor_obs_normalization": True},
        student_action_std=0.7,
        critic_warmup_iterations=1,
    )
    critic = [parameter.detach().clone() for parameter in algorithm.critic.parameters()]
    assert load(algorithm, checkpoint_of(student))
    old, new = student.policy.state_dict(), algorithm.policy.state_dict()
    for key in ("student.0.weight", "student_obs_normalizer._mean", "memory_s.rnn.weight_hh_l0"):
        if key in old:
            renamed = key.replace("student", "actor").replace("memory_s", "memory_a")
            assert torch.equal(new[renamed], old[key])
    assert torch.equal(new["std"], torch.full((2,), 0.7))
    for parameter, before in zip(algorithm.critic.parameters(), critic, strict=True):
        assert torch.equal(parameter, before)
    assert algorithm.optimizer.state == {}
    held = algorithm.policy.actor[0].weight.detach().clone()
    for seed, is_held in ((0, True), (1, False)):
        roll_out(algorithm, seed)
        algorithm.update()
        assert torch.equal(algorithm.policy.actor[0].weight, held) is is_held


def test_a_student_that_does_not_fit_changes_nothing():
    student = trained(make_distillation, TbpttDistillation, student="lstm")
    algorithm = make_ppo(TbpttPPO, **SIZES, kind="mlp")
    before = parameters_of(algorithm)
    with pytest.raises(ValueError, match="give the policy the class and 'rnn_type'"):
        load(algorithm, checkpoint_of(student))
    assert torch.equal(parameters_of(algorithm), before)
