"""Trainings with an exported teacher: labels, checkpoints and resumed runs of both algorithms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.exported_policies import write_torchscript
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained
from torch import nn

from rsl_tbptt.runners import TbpttDistillationRunner, TbpttOnPolicyRunner
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")

EXPORTED = "rsl_tbptt.models:ExportedTeacher"


class Expert(nn.Module):
    """Returns a share of the cue, which ``privileged`` shows at every step."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.actor = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.actor.weight.copy_(torch.tensor([[0.0, 0.0, gain]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.actor(x)


def teacher_file(folder: Path, gain: float = 1.0) -> str:
    return write_torchscript(Expert(gain), folder / f"expert_{gain}.pt")


def distilling(path: Any, teacher: Any = None, runner: Any = DistillationRunner, **kwargs) -> Any:
    """Build a runner, by default as with an override of ``class_name`` alone."""
    log_dir = kwargs.pop("log_dir", None)
    cfg = distillation_cfg(teacher_checkpoint=path, **kwargs)
    teacher = teacher or {**cfg["teacher"], "class_name": EXPORTED}
    return runner(RecallEnv(4, 3), {**cfg, "teacher": teacher}, log_dir=log_dir)


def imitating(path: Any, runner: Any = OnPolicyRunner, log_dir: Any = None, **options: Any) -> Any:
    options = {"num_mini_batches": 2, "critic_warmup_iterations": 0, **options}
    named = {"teacher_checkpoint": path, "teacher_cfg": {"class_name": EXPORTED}}
    cfg = fine_tuning_cfg(**{"teacher_loss": "mse", "teacher_updates": 10, **named, **options})
    return runner(RecallEnv(4, 3), cfg, log_dir=log_dir)


def labels_of(runner: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Train once; return the labels of the rollout, and its cues, (T, N) each."""
    runner.learn(1)
    stored = runner.alg.storage
    return stored.privileged_actions[..., 0], stored.observations["privileged"][..., -1]


@pytest.mark.parametrize("in_batches", [False, True])
def test_its_outputs_are_the_labels(in_batches, tmp_path):
    runner = distilling(teacher_file(tmp_path, 0.5), batch_teacher_labels=in_batches)
    labels, cue = labels_of(runner)
    torch.testing.assert_close(labels, 0.5 * cue)
    assert labels.abs().sum() > 0


@pytest.mark.parametrize("runner", [DistillationRunner, TbpttDistillationRunner])
def test_a_resumed_distillation_reads_the_file_again(runner, tmp_path):
    path = teacher_file(tmp_path)
    trained = distilling(path, runner=runner, log_dir=str(tmp_path))
    trained.learn(3)
    saved = torch.load(tmp_path / "model_2.pt", weights_only=True)
    assert saved["teacher_state_dict"] == {}
    assert saved["rsl_tbptt"]["models"]["teacher"]["obs_groups"] == {"privileged": [3]}
    resumed = distilling(path, runner=runner)
    resumed.load(str(tmp_path / "model_2.pt"))
    assert resumed.alg.num_updates == 3
    labels, cue = labels_of(resumed)
    torch.testing.assert_close(labels, cue)
    for file, message in ((None, "teacher_checkpoint is None"), ("gone.pt", "'gone.pt' does not")):
        resumed = distilling(file, runner=runner)
        resumed.load(str(tmp_path / "model_2.pt"))  # playing needs no file
        with pytest.raises(ValueError, match=message):
            resumed.learn(1)


@pytest.mark.parametrize("runner", [OnPolicyRunner, TbpttOnPolicyRunner])
@pytest.mark.parametrize("loss", ["mse", "nll"])
def test_a_resumed_ppo_reads_the_file_again(loss, runner, tmp_path):
    path, options = teacher_file(tmp_path), {"teacher_loss": loss}
    trained = imitating(path, runner, str(tmp_path), **options)
    trained.learn(2)
    assert trained.alg.metrics["teacher"] != 0
    resumed = imitating(path, runner, **options)
    resumed.load(str(tmp_path / "model_1.pt"))
    assert resumed.alg.save()["rsl_tbptt"]["imitation"]["num_updates"] == 2
    resumed.learn(1)
    assert resumed.alg.metrics["teacher_coef"] == trained.alg.imitation.coef < 0.5
    resumed = imitating(None, runner, **options)
    resumed.load(str(tmp_path / "model_1.pt"))
    with pytest.raises(ValueError, match="teacher_checkpoint is None, expected the teacher's file"):
        resumed.learn(1)


def test_students_of_networks_and_exported_teachers_continue_with_the_other(tmp_path):
    path, network = teacher_file(tmp_path), distillation_cfg()["teacher"]
    save_untrained(distilling(None, network), tmp_path / "of_network.pt")
    save_untrained(distilling(path), tmp_path / "of_exported.pt")
    runner = distilling(path)
    runner.load(str(tmp_path / "of_network.pt"))
    labels, cue = labels_of(runner)
    torch.testing.assert_close(labels, cue)
    runner = distilling(str(tmp_path / "of_network.pt"), distillation_cfg()["teacher"])
    runner.load(str(tmp_path / "of_exported.pt"))
    runner.learn(1)
    ppo = imitating(path)
    for name in ("of_network", "of_exported"):
        ppo.load(str(tmp_path / f"{name}.pt"))
    ppo.learn(1)


def test_what_needs_more_than_actions_is_refused(tmp_path):
    path = teacher_file(tmp_path)
    with pytest.raises(NotImplementedError, match=r"the teacher has distribution None.*use 'mse'"):
        distilling(path, loss_type="kl")
    with pytest.raises(NotImplementedError, match=r"teacher_loss to 'mse'.* or 'nll'"):
        imitating(path, teacher_loss="kl")
    heads = {"head": {"target": "teacher:actor", "hidden_dims": [4]}}
    with pytest.raises(ValueError, match=r"target is 'teacher:actor', expected a layer .* of \[\]"):
        distilling(path, auxiliary=heads)


def several(expert: str | None, network: str | None = None) -> dict[str, Any]:
    """Return the config of three teachers: an exported one, a network, and a controller."""
    teachers = {
        "tell": {"cfg": {"class_name": EXPORTED}, "checkpoint": expert},
        "net": {"cfg": distillation_cfg()["teacher"], "checkpoint": network},
        "rule": {"cfg": {"class_name": "support.controllers:expert"}},
    }
    skills = {"class_name": "rsl_tbptt.models:SelectedTeachers", "selector": select}
    return {**skills, "teachers": teachers}


def select(obs):
    return (obs["privileged"][:, 1] == 0).long()  # the network where no cue is shown


def test_one_of_several_teachers_may_be_exported(tmp_path):
    network = tmp_path / "network.pt"
    save_untrained(distilling(None, distillation_cfg()["teacher"]), network)
    expert = teacher_file(tmp_path, 0.5)
    runner = distilling(None, several(expert, str(network)))
    labels, cue = labels_of(runner)
    torch.testing.assert_close(labels[cue != 0], 0.5 * cue[cue != 0])
    save_untrained(runner, tmp_path / "model.pt")
    resumed = distilling(None, several(expert))  # the checkpoint brings the network
    resumed.load(str(tmp_path / "model.pt"))
    again, cue = labels_of(resumed)
    torch.testing.assert_close(again[cue != 0], 0.5 * cue[cue != 0])
    same = resumed.alg.teacher.teachers["net"].state_dict()
    for name, value in runner.alg.teacher.teachers["net"].state_dict().items():
        assert torch.equal(same[name], value)
    for file, message in ((None, r"tell\.checkpoint is None"), ("gone.pt", "'tell' cannot be lo")):
        resumed = distilling(None, several(file))
        resumed.load(str(tmp_path / "model.pt"))
        with pytest.raises(ValueError, match=message):
            resumed.learn(1)


def test_a_file_of_another_robot_is_refused_before_training(tmp_path):
    path = write_torchscript(nn.Linear(5, 1), tmp_path / "a.pt")
    with pytest.raises(ValueError, match="takes 5 observations, expected the 3 of the groups"):
        distilling(path).learn(1)
