"""Reading a run folder runs none of its code, and rebuilds the trained policy."""

import json
import sys
from typing import Any

import pytest
import torch
import yaml
from rsl_rl.models import MLPModel
from rsl_rl.runners import OnPolicyRunner
from support.trained import load_policy
from tensordict import TensorDict

from rsl_tbptt.files import read_config
from rsl_tbptt.runners import TbpttOnPolicyRunner
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import load_platform
from rsl_tbptt.tools.robot.export import export
from rsl_tbptt.tools.run import read_run
from rsl_tbptt.tools.simulate.policies import build_policy
from rsl_tbptt_tasks.memory import RecallEnv

isaaclab = load_platform("isaaclab")
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}
MLP = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu"}


def write_run(folder, **model):
    """Write the checkpoint and the agent's config of a stock PPO as Isaac Lab does."""
    obs = TensorDict({"policy": torch.zeros(1, 5)}, [1])
    torch.manual_seed(0)
    options = {"hidden_dims": [8], "distribution_cfg": dict(GAUSSIAN)}
    policy = MLPModel(obs, {"actor": ["policy"]}, "actor", 3, **options).eval()
    agent = {
        "obs_groups": {"actor": ["policy"]},
        "actor": {**MLP, "distribution_cfg": GAUSSIAN, **model},
    }
    (folder / "params").mkdir()
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(agent))
    torch.save({"actor_state_dict": policy.state_dict(), "iter": 0}, folder / "model_0.pt")
    return folder / "model_0.pt", policy


OBS = TensorDict({"policy": torch.zeros(1, 5)}, [1])


def acts_alike(policy, other):
    obs = TensorDict({"policy": torch.randn(4, 5)}, [4])
    return torch.equal(policy(obs), other(obs))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that anyone can put next to a run; it leaves a file when it is imported."""
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    code = "import pathlib, rsl_rl.models, torch\npathlib.Path('imported').touch()\n"
    code += "class Model(rsl_rl.models.MLPModel): pass\n"
    code += "def make(*args, **options): return Model(*args, **options)\n"
    (folder / "models.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_package"
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


PIPE = {"class_name": "pydoc:pipepager", "cmd": "touch ran"}
DETOURS = [
    "os:system",
    "my_package.models:Model",
    "my_package.models.Model",
    "rsl_rl.models.mlp_model:torch.nn.Sequential",
    "rsl_rl.models.mlp_model.torch.nn.Sequential",
    "rsl_rl.utils.utils:importlib.import_module",
    "rsl_tbptt.tools.commands.cli:main",
    "rsl_tbptt.models.controller:Controller",
    "rsl_rl.runners:OnPolicyRunner",
    "resolve_callable",
    "rsl_rl./models:x",
    {"class_name": "MLPModel"},
    None,
]


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_config_beside_a_checkpoint_runs_nothing(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, distribution_cfg=PIPE)
    assert main([command, "--checkpoint", "model_0.pt"]) == 1
    assert not (tmp_path / "ran").exists()
    assert "--trust pydoc" in capsys.readouterr().err


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", DETOURS, ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_only_models_and_distributions_of_rsl_rl_and_ours_are_loaded(name, nested, tmp_path):
    model = {"encoders": [{"class_name": name}]} if nested else {"class_name": name}
    checkpoint, _ = write_run(tmp_path, **model)
    with pytest.raises(ValueError, match=r"class_name is .*, expected a "):
        read_run(checkpoint)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "name", ["MLPModel", "rsl_rl.models:MLPModel", "rsl_rl.models.mlp_model.MLPModel"]
)
def test_names_of_rsl_rls_models_need_no_trust(name, tmp_path):
    checkpoint, trained = write_run(tmp_path, class_name=name)
    assert acts_alike(load_policy(checkpoint, obs=OBS), trained)


@pytest.mark.parametrize("name", ["Model", "make"])
def test_the_user_can_trust_a_package(name, package, tmp_path):
    checkpoint, trained = write_run(tmp_path, class_name=f"{package}.models:{name}")
    assert acts_alike(load_policy(checkpoint, obs=OBS, trust=[package]), trained)
    with pytest.raises(ValueError, match=r"--trust my_package"):
        load_policy(checkpoint, trust=["my_pack", "my_package.models.Model.x"])


def test_trust_in_a_package_does_not_extend_to_its_imports(package, tmp_path):
    checkpoint, _ = write_run(tmp_path, class_name=f"{package}.models:torch.nn.Linear")
    with pytest.raises(ValueError, match=r"is from torch\.nn.*--trust torch"):
        read_run(checkpoint, trust=[package])


def test_a_class_that_a_registered_tasks_config_names_is_loaded(package, tmp_path, monkeypatch):
    name = f"{package}.models:Model"
    checkpoint, trained = write_run(tmp_path, class_name=name)
    note = {"library": "rsl_rl", "task": "Mine", "metadata": {"agent": "a"}}
    (tmp_path / "run.json").write_text(json.dumps(note))
    agents = {"Mine": {"actor": {"class_name": name}}}
    monkeypatch.setattr(isaaclab, "registered_agent", lambda trained: agents[trained.task])
    assert acts_alike(load_policy(checkpoint, obs=OBS), trained)
    agents["Mine"] = {"actor": {"class_name": "MLPModel"}}
    with pytest.raises(ValueError, match="--trust my_package"):
        load_policy(checkpoint)


def test_a_task_whose_module_would_be_imported_has_to_be_named_by_the_user(tmp_path):
    note = {"library": "rsl_rl", "task": "my_package:Mine", "metadata": {"agent": "a"}}
    (tmp_path / "run.json").write_text(json.dumps(note))
    with pytest.raises(ValueError, match=r"task is 'my_package:Mine'.*--task my_package:Mine"):
        isaaclab.find_trained(tmp_path / "model_0.pt")
    assert isaaclab.find_trained(tmp_path / "model_0.pt", "my_package:Mine").task


CNN_CFG = {"output_channels": [2], "kernel_size": 3}
GROUPS = {"actor": ["depth", "policy", "camera"], "critic": ["policy"]}
SEES = {
    "class_name": "rsl_tbptt.models:CNNRNNModel",
    "cnn_cfg": CNN_CFG,
    "rnn_hidden_dim": 6,
    "hidden_dims": [8],
    "image_scale": 1 / 255,
}


class CameraEnv(RecallEnv):
    """Its observations have images of bytes in addition to vectors."""

    def get_observations(self):
        obs = super().get_observations()
        for name, shape in {"camera": (1, 6, 5), "depth": (2, 4, 4)}.items():
            obs[name] = torch.randint(256, (self.num_envs, *shape), dtype=torch.uint8)
        return obs


def runner_of(folder, runner_class: Any = TbpttOnPolicyRunner, **options):
    """Return a runner of rsl_rl alone, and save its PPO of a model with a class of its own."""
    algorithm = {"class_name": "rsl_tbptt.algorithms:TbpttPPO", "num_mini_batches": 1}
    cfg = {
        "num_steps_per_env": 4,
        "save_interval": 1,
        "obs_groups": {name: [*groups] for name, groups in GROUPS.items()},
        "algorithm": algorithm | options,
        "actor": {**SEES, "cnn_cfg": dict(CNN_CFG), "distribution_cfg": dict(GAUSSIAN)},
        "critic": {"class_name": "MLPModel", "hidden_dims": [8]},
    }
    runner = runner_class(CameraEnv(2, 3), cfg, str(folder))
    torch.save({**runner.alg.save(), "iter": 0, "infos": None}, folder / "model_0.pt")
    return runner


def same_actions(runner, policy):
    obs = CameraEnv(4, 3).get_observations()
    actor = runner.alg.actor.eval()
    actor.reset()
    return torch.equal(policy(obs), actor(obs))


def test_a_checkpoint_describes_its_models_completely(tmp_path):
    runner = runner_of(tmp_path, OnPolicyRunner)
    policy = load_policy(tmp_path / "model_0.pt")
    assert same_actions(runner, policy)
    assert policy.group_dtypes == {
        "depth": torch.uint8,
        "policy": torch.float32,
        "camera": torch.uint8,
    }
    models = torch.load(tmp_path / "model_0.pt", weights_only=True)["rsl_tbptt"]["models"]
    assert models["critic"]["arguments"] == {"hidden_dims": [8]}
    assert export(read_run(tmp_path / "model_0.pt"), tmp_path / "out")["output"]


def test_a_checkpoint_of_rsl_rl_alone_needs_the_whole_config_and_shapes(tmp_path):
    runner = runner_of(tmp_path, OnPolicyRunner)
    checkpoint = torch.load(tmp_path / "model_0.pt")
    del checkpoint["rsl_tbptt"]
    torch.save(checkpoint, tmp_path / "model_0.pt")
    told = {"actor": SEES | {"distribution_cfg": GAUSSIAN}, "obs_groups": GROUPS}
    (tmp_path / "told.yaml").write_text(yaml.safe_dump(told))
    files = (tmp_path / "model_0.pt", tmp_path / "told.yaml")
    assert same_actions(runner, load_policy(*files, CameraEnv(2, 3).get_observations()))
    with pytest.raises(ValueError, match=r"does not record the shapes of .*--task"):
        load_policy(*files)


def test_the_checkpoints_own_description_comes_before_a_file(tmp_path):
    runner, agent = runner_of(tmp_path, OnPolicyRunner), tmp_path / "told.yaml"
    told = {"actor": MLP, "obs_groups": {"actor": ["policy"]}, "clip_actions": 2.0}
    agent.write_text(yaml.safe_dump(told))
    run = read_run(tmp_path / "model_0.pt", agent=agent)
    assert same_actions(runner, build_policy(run))
    assert run.clip_actions == 2.0  # which only the file tells


def test_our_runners_write_the_agents_config_when_they_learn(tmp_path):
    runner = runner_of(tmp_path)
    assert not (tmp_path / "params").exists()
    (tmp_path / "model_0.pt").unlink()  # a training begins in a folder without any
    runner.learn(1)
    config = read_config(tmp_path / "params" / "agent.yaml")
    assert config["actor"]["image_scale"] == SEES["image_scale"]
    assert config["actor"]["distribution_cfg"]["class_name"] == "GaussianDistribution"
    assert config["obs_groups"] == GROUPS
    assert same_actions(runner, load_policy(tmp_path / "model_0.pt"))


ITSELF: dict[str, Any] = {"class_name": "MLPModel"}
ITSELF["encoder"] = ITSELF

MALFORMED = [
    ({"actor": None}, r"^actor is missing in its params.agent\.yaml, .*--agent FILE"),
    ({"obs_groups": None}, r"^obs_groups\.actor is missing in .*--agent FILE"),
    ({"actor": 5}, r"actor is 5 in .*, expected a mapping"),
    ({"obs_groups": {"actor": "policy"}}, r"obs_groups\.actor is 'policy' in .*, expected a list"),
    ({"actor": {**MLP, "activation": 7}}, "does not fit"),
    ({"actor": {**MLP, "distribution_cfg": {"init_std": 1.0}}}, "does not fit"),
    ({"actor": {"class_name": "Nothing"}}, r"'Nothing', expected one that can be imported"),
    ({"actor": {**MLP, "encoder": ITSELF}}, "cannot be read: Circular reference"),
]


@pytest.mark.parametrize(("sections", "message"), MALFORMED, ids=str)
def test_a_config_of_another_form_is_named_in_one_line(tmp_path, sections, message):
    checkpoint, _ = write_run(tmp_path)
    config = {"obs_groups": {"actor": ["policy"]}, "actor": MLP, **sections}
    config = {name: value for name, value in config.items() if value is not None}
    (tmp_path / "params" / "agent.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=message) as error:
        load_policy(checkpoint, obs=OBS)
    assert len(str(error.value).splitlines()) == 1
