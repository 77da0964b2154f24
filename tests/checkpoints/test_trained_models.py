"""A checkpoint's models need the same config, even where their parameters do not show it."""

import pytest
import torch
import yaml
from rsl_rl.models import MLPModel
from rsl_rl.runners import DistillationRunner
from support.fine_tuning import distillation_cfg
from support.helpers import make_distillation, make_model, make_ppo
from support.inside import through_a_file
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.files import read_config
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt_tasks.memory import RecallEnv

ELU = {"hidden_dims": (8,), "activation": "elu"}
OBS = TensorDict({"a": torch.zeros(4, 2), "b": torch.zeros(4, 3)}, batch_size=[4])


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


def train_cfg(activation="elu"):
    cfg = distillation_cfg()
    cfg["teacher"]["activation"] = activation
    return cfg


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


@pytest.mark.parametrize("load", LOADS)
def test_other_observation_groups_are_named_and_allowed(tmp_path, load):
    path = write_run(tmp_path, groups=("policy", "answer"))
    with pytest.warns(UserWarning, match=r"\['privileged'\] and was trained with \['policy', 'an"):
        load(path, train_cfg())


def test_a_checkpoint_outside_a_run_is_accepted_unchecked(tmp_path):
    path = write_run(tmp_path)
    (tmp_path / "params" / "agent.yaml").unlink()
    assert load_as_isaaclab(path, train_cfg("relu")).alg.teacher_loaded is True


@pytest.mark.parametrize(
    ("groups", "widths", "message"),
    [
        (["a", "b"], {"a": [2], "b": [3]}, None),
        (["b", "a"], {"a": [2], "b": [3]}, r"obs_groups\['teacher'\] is .*'b'.*, expected .*'a'"),
        (["a", "b"], {"a": [3], "b": [2]}, r"obs_groups\['teacher'\] is .* \[2\].*, expected"),
    ],
)
def test_order_and_widths_of_observation_groups(groups, widths, message):
    model = model_of(OBS, groups)
    trained = {"activations": ["ELU"], "obs_groups": widths}
    arguments = ("teacher", OBS, {"rsl_tbptt": {"models": {"actor": trained}}})
    if message is None:
        check_fits(model, model.state_dict(), *arguments)
        return
    with pytest.raises(ValueError, match=message):
        check_fits(model, model.state_dict(), *arguments)


def reinforcing(**options):
    return make_ppo(TbpttPPO, 4, 2, num_mini_batches=1, **options)


def distilling(**options):
    return make_distillation(TbpttDistillation, 4, 2, gradient_length=2, **options)


def pulled():
    algorithm = reinforcing(teacher_cfg={"class_name": "MLPModel"}, teacher_coef=1.0)
    algorithm.set_teacher(make_model("teacher", "mlp", 4, seed=2, activation="relu"))
    return algorithm


def test_checkpoints_of_this_package_describe_their_models():
    models = through_a_file(reinforcing(actor="mlp").save())["rsl_tbptt"]["models"]
    assert models["actor"] == {
        "activations": ["ELU"],
        "obs_groups": {"policy": [5]},
        "groups": {"policy": {"shape": [5], "dtype": "float32"}},
        "class_name": "rsl_rl.models.mlp_model:MLPModel",
    }
    assert models["critic"]["obs_groups"] == {"state": [7]}


RELU = {"activation": "relu"}


@pytest.mark.parametrize(
    ("written", "reader", "role"),
    [
        ({"actor": "mlp"}, lambda: reinforcing(actor="mlp", actor_kwargs=RELU), "actor"),
        (None, lambda: distilling(student_kwargs=RELU), "student"),
        (None, lambda: reinforcing(actor_kwargs=RELU), "actor"),
        (None, pulled, "teacher"),
    ],
)
def test_another_activation_than_a_checkpoint_describes_is_refused(written, reader, role):
    writer = reinforcing(**written) if written else distilling()
    with pytest.raises(ValueError, match=rf"{role}\.activation is ReLU, expected ELU"):
        reader().load(through_a_file(writer.save()), None, strict=True)


def test_a_config_is_read_without_running_code(tmp_path):
    (tmp_path / "agent.yaml").write_text(
        "a: !!python/tuple [1, [2]]\nb: !!python/object/apply:os.mkdir [ran]\n"
    )
    assert read_config(tmp_path / "agent.yaml") == {"a": (1, [2]), "b": None}
