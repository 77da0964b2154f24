"""Options: rsl_rl's names and defaults, clear errors, warnings for what would be ignored."""

import inspect
import math
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.helpers import make_distillation, roll_out
from support.safe_runs import make_runner

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.behavior_losses import resolve_behavior_loss
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt_tasks.memory import RecallEnv


def test_every_option_of_rsl_rl_is_known_with_its_default():
    ours = DistillationOptions()
    handled_elsewhere = {"self", "student", "teacher", "storage", "device", "multi_gpu_cfg"}
    for name, parameter in inspect.signature(Distillation.__init__).parameters.items():
        if name in handled_elsewhere or parameter.kind is parameter.VAR_KEYWORD:
            continue
        # Changed are 1.0 instead of no clipping, and 2 passes, which the replay buffer allows.
        if name not in ("max_grad_norm", "num_learning_epochs"):
            assert getattr(ours, name) == parameter.default


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gradient_lenght": 4},
            "Unknown option 'gradient_lenght' of TbpttDistillation: did you mean 'gradient_length'",
        ),
        ({"zzz": 4}, "Unknown option 'zzz'.*known options are"),
        ({"gradient_length": 0}, "gradient_length is 0, expected an integer of at least 1"),
        ({"gradient_length": 2.5}, "gradient_length is 2.5, expected an integer"),
        ({"update_length": 0}, "update_length is 0"),
        ({"num_learning_epochs": 0}, "num_learning_epochs is 0"),
        ({"num_micro_batches": 0}, "num_micro_batches is 0"),
        ({"num_micro_batches": 5}, "num_micro_batches is 5, expected at most num_envs, 4"),
        ({"loss_reduction": "max"}, "loss_reduction is 'max', expected 'mean' or 'sum'"),
        ({"tail": "keep"}, "tail is 'keep', expected 'flush' or 'drop'"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0.*Use None to not clip"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0, expected a positive number"),
        ({"learning_rate": math.inf}, "learning_rate is inf, expected a positive number"),
        ({"learning_rate": "1e-3"}, "learning_rate is '1e-3', expected a positive number"),
        ({"max_grad_norm": math.nan}, "max_grad_norm is nan.*Use None to not clip"),
        ({"memory_budget_gb": math.nan}, "memory_budget_gb is nan, expected a positive number"),
        ({"teacher_action_share": math.nan}, "teacher_action_share is nan, expected a number"),
        ({"grad_reduce_bucket_mb": math.inf}, "grad_reduce_bucket_mb is inf, expected a positive"),
        ({"scan_engine": "warp"}, "scan_engine is 'warp', expected one of"),
        ({"loss_type": "mae"}, "loss_type is 'mae', expected one of"),
        (
            {"loss_type": "support.helpers:nothing"},
            "loss_type is 'support.helpers:nothing', which cannot be",
        ),
        ({"rnd_cfg": {}}, "rnd_cfg and symmetry_cfg have no meaning"),
        ({"optimizer": "lion"}, "Invalid optimizer 'lion'"),
    ],
)
def test_bad_options_are_refused_by_name_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        roll_out(make_distillation(TbpttDistillation, 6, 4, **{"gradient_length": 3, **options}), 0)


def reduced(actions, labels):
    return (actions - labels).square().mean()


def of_actions_alone(actions):
    return actions.square()


def without_gradient(actions, labels):
    return (actions - labels).square().detach()


def summed_over_actions(actions, labels):
    return (actions - labels).square().sum(-1)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (reduced, r"returned shape \(\), expected \(2, 3, 2\)"),
        (summed_over_actions, r"returned shape \(2, 3\), expected \(2, 3, 2\)"),
        (of_actions_alone, "takes 1 positional argument but 2 were given"),
        (without_gradient, "does not require grad"),
    ],
)
def test_a_loss_of_ones_own_is_tried_out_before_anything_is_simulated(loss, reason):
    message = rf"loss_type is <function {loss.__name__}.*, which fails on .*{reason}.*: expected a"
    with pytest.raises(ValueError, match=message):
        make_distillation(TbpttDistillation, 6, 4, gradient_length=3, loss_type=loss)


def test_trying_out_a_loss_draws_no_random_number():
    algorithm = make_distillation(TbpttDistillation, 6, 4, gradient_length=3)
    before = torch.get_rng_state()
    resolve_behavior_loss("support.helpers:absolute_error", algorithm.student, algorithm.teacher, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gaussian_loss_needs_a_gaussian():
    with pytest.raises(NotImplementedError, match=r"set 'student\.distribution_cfg'"):
        make_distillation(
            TbpttDistillation,
            6,
            4,
            gradient_length=3,
            loss_type="nll",
            student_kwargs={"distribution_cfg": None},
        )


@pytest.mark.parametrize("options", [DistillationOptions, PpoOptions])
def test_an_old_name_gives_its_value_to_the_new_one_and_warns(options):
    message = "^num_env_chunks is now num_micro_batches: the next release drops the old name"
    with pytest.warns(DeprecationWarning, match=message) as warned:
        parsed = options.parse({"num_env_chunks": 3, "num_micro_batches": 1})  # as configs do
    assert (parsed.num_micro_batches, parsed.num_env_chunks) == (3, None)
    assert len(warned) == 1
    assert options.parse({"num_env_chunks": None}) == options()  # without a warning


def test_an_old_name_is_checked_as_the_new_one():
    with (
        pytest.warns(DeprecationWarning, match="num_env_chunks is now"),
        pytest.raises(ValueError, match="num_micro_batches is 0, expected an integer of at least"),
    ):
        DistillationOptions.parse({"num_env_chunks": 0})


def test_two_names_with_two_values_are_refused():
    message = "num_env_chunks is 3, expected None with num_micro_batches 2: it is the old name of"
    with pytest.raises(ValueError, match=message):
        DistillationOptions.parse({"num_env_chunks": 3, "num_micro_batches": 2})


def test_a_wrong_name_is_never_answered_with_an_old_one():
    with pytest.raises(ValueError, match="did you mean 'num_micro_batches'") as refused:
        DistillationOptions.parse({"num_micro_batch": 3})
    with pytest.raises(ValueError, match="known options are") as listed:
        DistillationOptions.parse({"zzz": 3})
    assert "num_env_chunks" not in str(refused.value) + str(listed.value)


def test_a_warning_points_at_who_chose_the_options():
    lengths: dict[str, Any] = {"gradient_length": 3}
    refusing: dict[str, Any] = {"non_finite": "raise", "max_skipped_updates": 3}
    with pytest.warns(UserWarning, match="max_skipped_updates is 3") as warned:
        make_distillation(TbpttDistillation, 6, 4, **refusing, **lengths)
    with pytest.warns(DeprecationWarning, match="num_env_chunks is now") as old:
        make_distillation(TbpttDistillation, 6, 4, num_env_chunks=2, **lengths)
    helpers = make_distillation.__code__.co_filename
    assert {warning.filename for warning in (*warned, *old)} == {helpers}


def test_options_and_their_checks_import_no_rsl_rl():
    """Config classes inherit them, which command lines import before anything is built."""
    code = """
import sys
sys.modules["rsl_rl"] = None
import rsl_tbptt.algorithms.options
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_lengths_beyond_the_rollout_warn():
    with pytest.warns(UserWarning, match="gradient_length is 15, more than num_steps_per_env, 8"):
        make_distillation(TbpttDistillation, 8, 4, gradient_length=15)
    with pytest.warns(UserWarning, match="update_length is 9, more than num_steps_per_env, 8"):
        make_distillation(TbpttDistillation, 8, 4, gradient_length=2, update_length=9)


def test_an_engine_without_a_scan_warns():
    with pytest.warns(
        UserWarning, match="scan_engine is 'compiled', which has no effect on a MLPModel"
    ):
        make_distillation(
            TbpttDistillation, 8, 4, student="mlp", gradient_length=2, scan_engine="compiled"
        )


def test_options_that_fit_do_not_warn():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make_distillation(TbpttDistillation, 8, 4, gradient_length=3, scan_engine="reference")
    assert not warned


def test_an_observation_group_that_does_not_exist_is_named():
    env = RecallEnv(num_envs=2, recall_length=2)
    cfg = {
        "num_steps_per_env": 4,
        "multi_gpu": None,
        "obs_groups": {"student": ["proprioception"], "teacher": ["privileged"]},
        "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttDistillation"},
        "student": {"class_name": "MLPModel"},
        "teacher": {"class_name": "MLPModel"},
    }
    message = r"'proprioception' in observation set 'student' not found.*'policy', 'privileged'"
    with pytest.raises(ValueError, match=message):
        TbpttDistillation.construct_algorithm(env.get_observations(), env, cfg, "cpu")


@pytest.mark.parametrize(
    ("kind", "runner"),
    [("ppo", OnPolicyRunner), ("distillation", DistillationRunner), ("ppo", None)],
    ids=["stock", "stock distillation", "ours"],
)
@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("num_step_per_env", "num_steps_per_env"),
        ("keep_lst", "keep_last"),
        ("Save-Interval", "save_interval"),
        ("heartbeat_timeout", "heartbeat_timeout_s"),
    ],
)
def test_a_mistyped_key_of_the_runner_is_refused_whichever_runner_it_is(kind, runner, key, meant):
    mistyped: dict[str, Any] = {key: 5}
    with pytest.raises(ValueError, match=f"Unknown key '{key}' of .*: did you mean '{meant}'"):
        make_runner(None, kind, runner, **mistyped)


def test_a_mistyped_key_is_refused_with_an_algorithm_of_rsl_rl_too():
    with pytest.raises(ValueError, match=r"Unknown key 'keep_lst' of .*: did you mean 'keep_last'"):
        make_runner(None, "ppo", algorithm={"class_name": "PPO"}, keep_lst=5)


@pytest.mark.parametrize("runner", [OnPolicyRunner, None], ids=["stock", "ours"])
def test_keys_of_platforms_and_of_a_users_own_are_taken(runner):
    own = {"eval_interval": 5, "log_interval": 1, "curriculum": {}, "git_hash": "0a1b"}
    platforms = {"experiment_name": "x", "wandb_tags": (), "upload_model": True, "load_run": ".*"}
    make_runner(None, "ppo", runner, **platforms, **own)


@pytest.mark.parametrize(
    ("name", "value"), [("save_buffer", True), ("buffer_share", 0.5), ("buffer_gb", None)]
)
def test_options_of_a_memory_that_is_not_kept_warn(name, value):
    message = f"{name} is {value}, which has no effect: buffer_rollouts is 0"
    with pytest.warns(UserWarning, match=message):
        DistillationOptions.parse({"buffer_rollouts": 0, name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistillationOptions.parse({"buffer_rollouts": 1, name: value})
        DistillationOptions.parse({"buffer_rollouts": 0})
