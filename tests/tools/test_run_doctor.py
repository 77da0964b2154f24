"""``rsl-tbptt doctor RUN`` finds planted faults in the log folders of trainings, and only them."""

import pytest
import torch
from support import planted_faults
from support.planted_faults import BlindRecallEnv, ScaledRecallEnv, fitted_teacher, recall
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt.tools.commands.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Loss/"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def train_ppo(folder, **options):
    return planted_faults.train_ppo(folder / "run", seed=1, **options)


def train_student(folder, teacher=None, **options):
    return planted_faults.train_student(
        folder / "run", 1, fitted_teacher() if teacher is None else teacher, **options
    )


def scaled(**scales):
    return recall(ScaledRecallEnv, scales=scales)


def findings(run, capsys):
    """Return the problems that the command prints for a run, one line each."""
    status = main(["doctor", str(run)])
    shown = capsys.readouterr().out
    wrong = [line.split("-      ")[1] for line in shown.splitlines() if line.startswith(" " * 13)]
    assert status == (1 if wrong else 0)
    assert ("no problems found" in shown) is (not wrong)
    return wrong


def test_a_healthy_ppo_run_is_passed(tmp_path, capsys):
    assert findings(train_ppo(tmp_path), capsys) == []


@pytest.mark.parametrize("normalizes", [False, True])
def test_a_healthy_student_is_passed(tmp_path, capsys, normalizes):
    student = {"obs_normalization": normalizes}
    assert findings(train_student(tmp_path, student=student), capsys) == []


def test_a_learning_rate_ten_times_too_high(tmp_path, capsys):
    healthy = train_ppo(tmp_path / "healthy", schedule="fixed")
    assert findings(healthy, capsys) == []
    run = train_ppo(tmp_path, schedule="fixed", learning_rate=2e-2)
    (found,) = findings(run, capsys)
    assert found.startswith("Loss/kl is ")
    assert "Lower learning_rate" in found


def test_a_gradient_length_of_one(tmp_path, capsys):
    (found,) = findings(train_ppo(tmp_path, gradient_length=1, iterations=8), capsys)
    assert found.startswith("gradient_length is 1, expected")
    assert findings(train_ppo(tmp_path / "2", gradient_length=5, iterations=8), capsys) == []


def test_a_student_whose_gradient_is_too_short_to_remember(tmp_path, capsys):
    env = recall(recall_length=16)
    (found,) = findings(train_student(tmp_path, env=env, gradient_length=4), capsys)
    assert found.startswith("Loss/explained_variance/student is ")
    assert "gradient_length covers" in found


def test_a_student_that_cannot_see(tmp_path, capsys):
    (found,) = findings(train_student(tmp_path, env=recall(BlindRecallEnv)), capsys)
    assert found.startswith("Loss/explained_variance/student is ")
    assert "obs_groups" in found


def test_an_observation_group_of_size_1000(tmp_path, capsys):
    env = scaled(policy=1e3)
    (found,) = findings(train_student(tmp_path, env=env, iterations=20), capsys)
    assert found.startswith("Loss/obs_scale/student/policy is 4")
    assert "obs_normalization=True" in found
    normalized = {"student": {"obs_normalization": True}, "env": scaled(policy=1e3)}
    assert findings(train_student(tmp_path / "2", iterations=20, **normalized), capsys) == []


@pytest.mark.parametrize(
    ("normalizes", "scale", "metric"),
    [
        (True, 57.0, "normalized_obs_scale/teacher/privileged"),  # degrees for radians
        (False, 1e3, "label_scale"),
        (False, 0.0, "label_std"),
    ],
)
def test_a_teacher_that_does_not_fit_its_observations(tmp_path, capsys, normalizes, scale, metric):
    run = train_student(
        tmp_path,
        fitted_teacher(normalizes=normalizes),
        normalizes=normalizes,
        env=scaled(privileged=scale),
        iterations=20,
    )
    found = findings(run, capsys)
    assert any(each.startswith(f"Loss/{metric} is ") for each in found)
    assert all("the teacher does not fit its observations" in each for each in found)


def log(folder, **metrics):
    """Write metrics as rsl_rl does; return the folder."""
    writer = SummaryWriter(str(folder))
    for name, values in metrics.items():
        for iteration, value in enumerate(values):
            writer.add_scalar(f"Loss/{name}", value, iteration)
    writer.close()
    return folder


def test_a_problem_at_the_end_is_found(tmp_path, capsys):
    assert findings(log(tmp_path / "recovered", kl=[1.0] * 60 + [0.01] * 40), capsys) == []
    (found,) = findings(log(tmp_path, kl=[0.01] * 60 + [1.0] * 40), capsys)
    assert found.startswith("Loss/kl is 1, expected at most 0.1")


def log_returns(folder, trained, held_out, error=0.1, **metrics):
    own = {"return": held_out, "return_error": [error] * len(held_out)}
    log(folder, **{f"held_out/{name}": values for name, values in own.items()}, **metrics)
    writer = SummaryWriter(str(folder))
    for iteration, value in enumerate(trained):
        writer.add_scalar("Train/mean_reward", value, iteration)
    writer.close()
    return folder


RISING = [float(step) for step in range(80)]


@pytest.mark.parametrize(
    ("held_out", "options"),
    [
        ([step - 5.0 for step in RISING], {}),  # within a tenth of the range
        ([step + 30.0 for step in RISING], {}),
        ([step - 20.0 for step in RISING], {"error": 15.0}),
        ([step - 20.0 for step in RISING], {"teacher_action_share": [0.5] * 80}),
    ],
)
def test_held_out_environments_that_return_about_as_much_are_no_problem(
    tmp_path, capsys, held_out, options
):
    assert findings(log_returns(tmp_path, RISING, held_out, **options), capsys) == []


def test_a_gap_to_the_held_out_environments_is_named(tmp_path, capsys):
    falling = [*RISING[:40], *(80.0 - step for step in RISING[40:])]
    (found,) = findings(log_returns(tmp_path, RISING, falling), capsys)
    assert found.startswith("Train/mean_reward is 69.5 and Loss/held_out/return 10.5 (its standard")
    assert "learning_rate_updates" in found


def test_the_held_out_explained_variance_is_judged_in_place_of_the_trained_one(tmp_path, capsys):
    bad, good = [0.0] * 120, [0.9] * 120
    both = {"explained_variance/student": good, "held_out/explained_variance": bad}
    (found,) = findings(log(tmp_path / "worse", **both), capsys)
    assert found.startswith("Loss/held_out/explained_variance is 0")
    both = {"explained_variance/student": bad, "held_out/explained_variance": good}
    assert findings(log(tmp_path / "better", **both), capsys) == []


def test_metrics_with_too_few_updates_are_named(tmp_path, capsys):
    log(tmp_path / "short", kl=[1.0] * 9, replay_difference=[0.0] * 9, loss=[0.0] * 9)
    assert main(["doctor", str(tmp_path / "short")]) == 0
    shown = capsys.readouterr().out
    assert "9 updates; too few updates for kl (9 of 10)\n" in shown
    assert "no problems found (skipped: 2)" in shown


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_became_nan_or_inf_is_named(tmp_path, capsys, value):
    (found,) = findings(log(tmp_path, surrogate=[0.1, value], value=[value, 0.1]), capsys)
    assert found.startswith(
        f"Loss/surrogate is {value}, expected a finite number: with non_finite="
    )


def test_skipped_updates_are_named(tmp_path, capsys):
    (found,) = findings(log(tmp_path, skipped_updates=[0.0, 0.0, 3.0]), capsys)
    assert found.startswith("Loss/skipped_updates is 3, expected 0")


def test_the_newest_checkpoint_is_looked_at(tmp_path, capsys):
    torch.save(
        {"actor_state_dict": {"mlp.0.weight": torch.ones(2)}, "iter": 9}, tmp_path / "model_9.pt"
    )
    assert findings(tmp_path, capsys) == []
    bad = {"mlp.0.weight": torch.tensor([1.0, torch.nan]), "count": torch.tensor(3)}
    torch.save({"actor_state_dict": bad, "iter": 10}, tmp_path / "model_10.pt")
    (found,) = findings(tmp_path, capsys)
    assert found.startswith("actor_state_dict.mlp.0.weight hold NaN or inf")
    (tmp_path / "model_11.pt").write_bytes(b"half of it")
    (found,) = findings(tmp_path, capsys)
    assert "model_11.pt' cannot be read" in found


class Evil:
    """Runs code if a checkpoint is unpickled without checks."""

    def __reduce__(self):
        return (print, ("code of the checkpoint ran",))


def test_no_code_of_a_checkpoint_runs(tmp_path, capsys):
    torch.save({"actor_state_dict": Evil()}, tmp_path / "model_0.pt")
    assert main(["doctor", str(tmp_path)]) == 1
    assert "code of the checkpoint ran" not in capsys.readouterr().out


def test_a_damaged_config_is_named(tmp_path, capsys):
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text("a: [")
    (found,) = findings(tmp_path, capsys)
    assert "cannot be read" in found


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main(["doctor", str(tmp_path / name)]) == 1
    assert "expected the log folder of a training" in capsys.readouterr().err
