"""What reads a run folder runs none of its code, and rebuilds the policy that was trained."""

import json
import sys

import pytest
import torch
import yaml
from rsl_rl.models import MLPModel
from tensordict import TensorDict

from rsl_tbptt.cli import main
from rsl_tbptt.platforms import isaaclab
from rsl_tbptt.policies import load_policy, read_policy

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}
MLP = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu"}


def write_run(folder, **model):
    """Write what Isaac Lab leaves of a stock PPO: a checkpoint and the agent's config."""
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


def acts_alike(policy, other):
    obs = TensorDict({"policy": torch.randn(4, 5)}, [4])
    return torch.equal(policy(obs), other(obs))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as anyone can leave beside a run; it notes that it was imported."""
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
    "rsl_tbptt.cli:main",
    "rsl_tbptt.models:SelectedTeachers",
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
        read_policy(checkpoint)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "name", ["MLPModel", "rsl_rl.models:MLPModel", "rsl_rl.models.mlp_model.MLPModel"]
)
def test_names_of_rsl_rls_models_need_no_word(name, tmp_path):
    checkpoint, trained = write_run(tmp_path, class_name=name)
    assert acts_alike(load_policy(checkpoint), trained)


@pytest.mark.parametrize("name", ["Model", "make"])
def test_the_user_can_trust_a_package(name, package, tmp_path, capsys):
    checkpoint, trained = write_run(tmp_path, class_name=f"{package}.models:{name}")
    assert acts_alike(load_policy(checkpoint, trust=[package]), trained)
    assert main(["export", "--checkpoint", str(checkpoint), "--trust", package]) == 0
    with pytest.raises(ValueError, match=r"--trust my_package"):
        load_policy(checkpoint, trust=["my_pack", "my_package.models.Model.x"])


def test_trust_in_a_package_is_none_in_what_it_imports(package, tmp_path):
    checkpoint, _ = write_run(tmp_path, class_name=f"{package}.models:torch.nn.Linear")
    with pytest.raises(ValueError, match=r"is from torch\.nn.*--trust torch"):
        read_policy(checkpoint, trust=[package])


def test_a_class_that_a_registered_tasks_config_names_is_loaded(package, tmp_path, monkeypatch):
    name = f"{package}.models:Model"
    checkpoint, trained = write_run(tmp_path, class_name=name)
    note = {"library": "rsl_rl", "task": "Mine", "metadata": {"agent": "a"}}
    (tmp_path / "run.json").write_text(json.dumps(note))
    agents = {"Mine": {"actor": {"class_name": name}}}
    monkeypatch.setattr(isaaclab, "registered_agent", lambda trained: agents[trained.task])
    assert acts_alike(load_policy(checkpoint), trained)
    agents["Mine"] = {"actor": {"class_name": "MLPModel"}}
    with pytest.raises(ValueError, match="--trust my_package"):
        load_policy(checkpoint)


def test_a_task_whose_module_would_be_imported_has_to_be_named_by_the_user(tmp_path):
    note = {"library": "rsl_rl", "task": "my_package:Mine", "metadata": {"agent": "a"}}
    (tmp_path / "run.json").write_text(json.dumps(note))
    with pytest.raises(ValueError, match=r"task is 'my_package:Mine'.*--task my_package:Mine"):
        isaaclab.find_trained(tmp_path / "model_0.pt")
    assert isaaclab.find_trained(tmp_path / "model_0.pt", "my_package:Mine").task
