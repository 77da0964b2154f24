"""Controllers as teachers: named in a config or given, in both algorithms, under stock runners."""

import copy
import warnings
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support import controllers
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained

from rsl_tbptt.runners import TbpttDistillationRunner, TbpttOnPolicyRunner
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")

NAMED = "support.controllers:"
KINDS = ["expert", "Playback", "Rule", "OfFile"]


def distilling(teacher: Any, runner: Any = DistillationRunner, log_dir=None, **options: Any) -> Any:
    """Build a runner as with an override of ``class_name`` alone, if ``teacher`` is a name."""
    cfg = distillation_cfg(**options)
    if isinstance(teacher, str) and teacher != "Rule":
        teacher = {**cfg["teacher"], "class_name": NAMED + teacher}  # as an override leaves it
    elif teacher == "Rule":
        teacher = {"class_name": NAMED + teacher}
    return runner(RecallEnv(4, 3), {**cfg, "teacher": teacher}, log_dir=log_dir)


def imitating(teacher: str, runner: Any = OnPolicyRunner, log_dir=None, **options: Any) -> Any:
    """Build a runner of PPO; it has no observation set for a teacher."""
    options = {"num_mini_batches": 2, "critic_warmup_iterations": 0, **options}
    teacher_cfg = {"teacher_cfg": {"class_name": NAMED + teacher}}
    cfg = fine_tuning_cfg(**{"teacher_loss": "mse", **teacher_cfg, **options})
    return runner(RecallEnv(4, 3), cfg, log_dir=log_dir)


@pytest.mark.parametrize("runner", [DistillationRunner, TbpttDistillationRunner])
@pytest.mark.parametrize("teacher", KINDS)
def test_distillation_needs_no_checkpoint_and_resumes(teacher, runner, tmp_path):
    trained = distilling(teacher, runner, str(tmp_path))
    trained.learn(3)
    saved = torch.load(tmp_path / "model_2.pt", weights_only=True)
    assert saved["teacher_state_dict"] == {}
    resumed = distilling(teacher, runner)
    resumed.load(str(tmp_path / "model_2.pt"))
    assert resumed.alg.num_updates == 3
    resumed.learn(1)
    assert resumed.alg.metrics["skipped_updates"] == 0


@pytest.mark.parametrize("runner", [OnPolicyRunner, TbpttOnPolicyRunner])
@pytest.mark.parametrize("loss", ["mse", "nll"])
@pytest.mark.parametrize("teacher", KINDS)
def test_ppo_needs_no_checkpoint_and_resumes(teacher, loss, runner, tmp_path):
    options = {"teacher_loss": loss, "teacher_updates": 10}
    trained = imitating(teacher, runner, str(tmp_path), **options)
    trained.learn(2)
    assert trained.alg.metrics["teacher"] != 0
    resumed = imitating(teacher, runner, **options)
    resumed.load(str(tmp_path / "model_1.pt"))
    assert resumed.alg.imitation.coef == trained.alg.imitation.coef < 0.5
    resumed.learn(1)
    assert resumed.alg.metrics["skipped_updates"] == 0


def labels_of(runner: Any) -> torch.Tensor:
    """Return the labels of one rollout, (T, N), when its update begins."""
    found = []
    runner.alg.update, update = (
        lambda: found.append(runner.alg.storage.privileged_actions[..., 0].clone()) or update(),
        runner.alg.update,
    )
    runner.learn(1)
    return found[0]


def test_its_state_is_reset_where_an_episode_ends_and_its_buffer_is_copied():
    runner = distilling("Playback")
    first, then = labels_of(runner), labels_of(runner)
    phases = torch.arange(4)  # the environments' steps at the start
    steps = torch.arange(8).unsqueeze(1)
    # The controller starts with the training, so until the first reset it counts from there.
    since = torch.where(steps < 4 - phases, steps, (steps + phases) % 4)
    expected = torch.tensor([0.1, 0.2, 0.3, 0.4])[since]
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(then, torch.tensor([0.1, 0.2, 0.3, 0.4])[(steps + phases) % 4])
    (playback,) = runner.alg.teacher._controller
    assert playback.env is runner.env
    assert playback.told[0] == [False, False, False, True]


def test_a_skipped_update_does_not_touch_its_state():
    runner = distilling("Playback")
    runner.learn(1)
    (playback,) = runner.alg.teacher._controller
    with torch.inference_mode():
        actions = runner.alg.act(runner.env.get_observations())
        runner.alg.process_env_step(*runner.env.step(actions))
    before, told = playback.steps.copy(), len(playback.told)
    runner.alg.transaction.drop_rollout()
    assert runner.alg.storage.step == 0
    assert (playback.steps == before).all()
    assert len(playback.told) == told


def test_arguments_come_from_the_config_and_a_callable_may_be_given():
    named = distilling({"class_name": NAMED + "Playback", "actions": (0.7,)})
    assert (labels_of(named) == 0.7).all()
    with_gain = {"class_name": controllers.expert, "gain": 3.0}
    cfg = distillation_cfg() | {"teacher": with_gain}
    runner = DistillationRunner(RecallEnv(4, 3), copy.deepcopy(cfg), log_dir=None)
    assert labels_of(runner).unique().tolist() == [-3.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ("of_wrong_shape", r"actions of shape \(1, 1\), expected \(4, 1\): one row per environ"),
        ("writes", r"The teacher writes writes into the 'privileged' that it is given"),
        ({"class_name": NAMED + "Playback", "actons": (1.0,)}, r"'actons'.*a controller: a class"),
        ({"class_name": NAMED + "expert", "gian": 2.0}, r"'gian'.*expected a model of rsl_rl's in"),
    ],
)
def test_a_faulty_controller_is_refused(teacher, message):
    with pytest.raises(ValueError, match=message):
        distilling(teacher).learn(1)


@pytest.mark.parametrize("make", [distilling, imitating])
@pytest.mark.parametrize("teacher", ["expert", "Rule"])
def test_a_file_for_a_teacher_without_parameters_is_refused(teacher, make):
    with pytest.raises(ValueError, match=r"teacher_checkpoint is 'x\.pt', expected None: the"):
        make(teacher, teacher_checkpoint="x.pt")


def test_several_teachers_of_earlier_releases_are_refused_by_name():
    teacher = {"class_name": "rsl_tbptt.models:SelectedTeachers", "selector": "s", "teachers": {}}
    with pytest.raises(ImportError, match=r"SelectedTeachers is gone: .* controller of your own"):
        distilling(teacher)


def test_students_of_networks_and_controllers_continue_with_the_other(tmp_path):
    """A distillation with a controller, then with a network, and the reverse."""

    def network():  # anew, as old releases remove entries from it
        return distillation_cfg()["teacher"]

    save_untrained(distilling("expert"), tmp_path / "of_controller.pt")
    save_untrained(distilling(network()), tmp_path / "of_network.pt")
    runner = distilling("expert")
    runner.load(str(tmp_path / "of_network.pt"))
    runner.learn(1)
    options = {"teacher_checkpoint": str(tmp_path / "of_network.pt")}
    runner = distilling(network(), **options)
    runner.load(str(tmp_path / "of_controller.pt"))
    runner.learn(1)
    ppo = imitating("expert")
    for name in ("of_network", "of_controller"):
        ppo.load(str(tmp_path / f"{name}.pt"))
    ppo.learn(1)
    runner = distilling(network())
    runner.load(str(tmp_path / "of_controller.pt"))
    with pytest.raises(ValueError, match="teacher_checkpoint is None and no checkpoint"):
        runner.learn(1)


def test_losses_that_need_a_teachers_distribution_name_those_that_do_not():
    with pytest.raises(NotImplementedError, match=r"the teacher has distribution None.*use 'mse'"):
        distilling("expert", loss_type="kl")
    with pytest.raises(NotImplementedError, match=r"teacher_loss to 'mse'.* or 'nll'"):
        imitating("expert", teacher_loss="kl")


@pytest.mark.skipif(not hasattr(Distillation, "compile"), reason="rsl_rl 5.0 does not compile")
def test_compiled_models_leave_a_controller_alone():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithm = distilling("Playback").alg
        algorithm.compile("default")
        obs = RecallEnv(4, 3).get_observations()
        with torch.inference_mode():
            assert algorithm.teacher(obs).flatten().tolist() == pytest.approx([0.1] * 4)
