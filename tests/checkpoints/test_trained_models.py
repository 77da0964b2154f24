"""A checkpoint's models need the same config, even where their parameters do not show it."""

import pytest
import torch
import yaml
from rsl_rl.models import MLPModel
from rsl_rl.runners import DistillationRunner
from support.helpers import make_distillation, make_ppo

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt_tasks.memory import RecallEnv

ELU = {"hidden_dims": (8,), "activation": "elu"}


def write_run(folder, actor=ELU, groups=("privileged",)):
    """Write the files of a stock PPO teacher as a platform does, with Python's tags on tuples."""
    env = RecallEnv(4, 3)
    model = model_of(env.get_observations(), ["privileged"])
    (folder / "params").mkdir()
    agent = {"actor": {"class_name": "MLPModel", **actor}, "obs_groups": {"actor": groups}}
    (folder / "params" / "agent.yaml").write_text(yaml.dump(agent))
    checkpoint = {"actor_state_dict": model.state_dict(), "iter": 0, "infos": None}
    torch.save(checkpoint, folder / "model_0.pt")
    return str(folder / "model_0.pt")


def model_of(obs, groups):
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.1}
    sets = {"teacher": groups}
    return MLPModel(obs, sets, "teacher", 1, hidden_dims=[8], distribution_cfg=gaussian)


def train_cfg(activation="elu", **options):
    """Return a config as Isaac Lab passes it: its --checkpoint is in "load_checkpoint"."""
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.1}
    model = {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": gaussian}
    return {
        "num_steps_per_env": 6,
        "save_interval": 1,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 3,
            **options.pop("algorithm", {}),
        },
        "student": {**model, "distribution_cfg": dict(gaussian)},
        "teacher": {**model, "distribution_cfg": dict(gaussian), "activation": activation},
        **options,
    }


def load_as_isaaclab(path, cfg):
    runner = DistillationRunner(RecallEnv(4, 3), {**cfg, "load_checkpoint": path})
    runner.load(path)
    return runner


def load_by_our_runner(path, cfg):
    TbpttDistillationRunner(RecallEnv(4, 3), {**cfg, "load_checkpoint": "model_.*.pt"}).load(path)


def load_teacher_checkpoint(path, cfg):
    cfg["algorithm"]["teacher_checkpoint"] = path
    runner = DistillationRunner(RecallEnv(4, 3), cfg)
    runner.learn(1)


LOADS = [load_as_isaaclab, load_by_our_runner, load_teacher_checkpoint]


@pytest.mark.parametrize("load", LOADS)
def test_a_teacher_with_another_activation_than_its_run_had_is_refused(tmp_path, load):
    path = write_run(tmp_path)
    load(path, train_cfg("elu"))
    with pytest.raises(
        ValueError, match=r"teacher\.activation is ReLU, expected ELU.*agent\.yaml' says"
    ):
        load(path, train_cfg("relu"))


def test_other_observation_groups_are_named_and_allowed(tmp_path):
    path = write_run(tmp_path, groups=("policy", "answer"))
    with pytest.warns(UserWarning, match=r"\['privileged'\] and was trained with \['policy', 'an"):
        load_as_isaaclab(path, train_cfg())


def test_checkpoints_of_this_package_describe_their_models(tmp_path):
    relu = {"activation": "relu"}
    teacher = make_ppo(TbpttPPO, 4, 2, actor="mlp", num_mini_batches=1).save()
    torch.save(teacher, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=True)["rsl_tbptt"]["models"]
    described = {
        "activations": ["ELU"],
        "obs_groups": {"policy": [5]},
        "images": {},
        "groups": {"policy": {"shape": [5], "dtype": "float32"}},
        "class_name": "rsl_rl.models.mlp_model:MLPModel",
    }
    assert read["actor"] == described
    assert read["critic"]["obs_groups"] == {"state": [7]}
    with pytest.raises(ValueError, match=r"actor\.activation is ReLU, expected ELU"):
        make_ppo(TbpttPPO, 4, 2, actor="mlp", num_mini_batches=1, actor_kwargs=relu).load(
            teacher, None, strict=True
        )
    student = make_distillation(TbpttDistillation, 4, 2, gradient_length=2).save()
    with pytest.raises(ValueError, match=r"student\.activation is ReLU, expected ELU"):
        make_distillation(TbpttDistillation, 4, 2, gradient_length=2, student_kwargs=relu).load(
            student, None, strict=True
        )
    with pytest.raises(ValueError, match=r"actor\.activation is ReLU, expected ELU"):
        make_ppo(TbpttPPO, 4, 2, num_mini_batches=1, actor_kwargs=relu).load(
            student, None, strict=True
        )
