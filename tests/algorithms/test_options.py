"""Options: rsl_rl's names and defaults, clear errors, warnings for what would be ignored."""

import inspect
import math
import re
import warnings
from typing import Any

import pytest
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import RNNModel
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.helpers import make_distillation, make_ppo, roll_out
from support.safe_runs import make_runner, model_cfg

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import CHANGEABLE, DistillationOptions, PpoOptions

NO_OPTIONS = {"self", "student", "teacher", "actor", "critic", "storage", "device"}
NO_OPTIONS |= {"multi_gpu_cfg", "rnd_cfg", "symmetry_cfg"}


@pytest.mark.parametrize(
    ("stock", "options"), [(Distillation, DistillationOptions), (PPO, PpoOptions)]
)
def test_every_option_of_rsl_rl_is_known_with_its_default(stock, options):
    ours = options()
    for name, parameter in inspect.signature(stock.__init__).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name in NO_OPTIONS:
            continue
        # Changed: 1.0 instead of no clipping, and 2 passes, which the replay buffer allows.
        if stock is PPO or name not in ("max_grad_norm", "num_learning_epochs"):
            assert getattr(ours, name) == parameter.default


DISTILLATION: list[tuple[dict[str, Any], str]] = [
    (
        {"gradient_lenght": 4},
        "Unknown option 'gradient_lenght' of TbpttDistillation: did you mean 'gradient_length'",
    ),
    ({"gradient_length": 0}, "gradient_length is 0, expected an integer of at least 1"),
    ({"gradient_length": 2.5}, "gradient_length is 2.5, expected an integer"),
    ({"num_micro_batches": 5}, "num_micro_batches is 5, expected at most num_envs, 4"),
    ({"loss_reduction": "max"}, "loss_reduction is 'max', expected 'mean' or 'sum'"),
    ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0.*Use None to not clip"),
    ({"learning_rate": "1e-3"}, "learning_rate is '1e-3', expected a positive number"),
    ({"teacher_action_share": math.nan}, "teacher_action_share is nan, expected a finite number"),
    ({"scan_engine": "warp"}, "scan_engine is 'warp', expected one of"),
    ({"loss_type": "mae"}, "loss_type is 'mae', expected one of"),
    ({"loss_type": "support.helpers:no"}, "loss_type is 'support.helpers:no', expected"),
    ({"use_mixed_precision": "False"}, "use_mixed_precision is 'False', expected True or False"),
    ({"rnd_cfg": {}}, "rnd_cfg and symmetry_cfg mean nothing"),
    ({"symmetry_cfg": {}}, "rnd_cfg and symmetry_cfg mean nothing"),
    ({"optimizer": "lion"}, "Invalid optimizer 'lion'"),
    ({"held_out_envs": 4}, "held_out_envs is 4, expected less than num_envs, 4"),
    (
        {"held_out_envs": 1, "num_micro_batches": 4},
        "num_micro_batches is 4 and held_out_envs is 1, expected at most 3",
    ),
]
TEACHER: dict[str, Any] = {"teacher_cfg": {"class_name": "any"}, "teacher_coef": 0.8}
MLPS: dict[str, Any] = {"actor": "mlp", "critic": "mlp"}
NORMALIZED: dict[str, Any] = {"num_steps": 1, "normalize_advantage_per_mini_batch": True}
PPO_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_mini_batches": 5}, "num_mini_batches is 5, .* num_envs, 4"),
    ({**MLPS, "num_mini_batches": 25}, "num_mini_batches is 25, .* samples"),
    ({"num_micro_batches": 5}, "num_micro_batches is 5"),
    ({"gamma": 1.01}, "gamma is 1.01"),
    # rsl_rl's parameters become NaN with one sample.
    ({**NORMALIZED, "num_mini_batches": 4}, "number of samples is 1 in the smallest"),
    ({**NORMALIZED, **MLPS, "num_mini_batches": 4}, "number of samples is 1 in the smallest"),
    ({**TEACHER, "teacher_coef_end": 0.9}, "teacher_coef_end is 0.9"),
    (TEACHER, r"teacher_coef is 0\.8 and no teacher was set, expected"),
    ({"actor_kwargs": {"distribution_cfg": None}}, r"actor.distribution_cfg is None, expected a d"),
]


@pytest.mark.parametrize(("options", "message"), DISTILLATION)
def test_bad_options_of_distillation_are_refused_by_name_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        roll_out(make_distillation(TbpttDistillation, 6, 4, **{"gradient_length": 3, **options}), 0)


@pytest.mark.parametrize(("options", "message"), PPO_OPTIONS)
def test_bad_options_of_ppo_are_refused_by_name_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        roll_out(make_ppo(TbpttPPO, **{"num_steps": 6, "num_envs": 4, **options}), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minibatch_unit": "window"}, "minibatch_unit is 'window', which acts as 'env'"),
        ({"teacher_updates": 3}, "teacher_updates is 3"),
        ({**MLPS, "gradient_length": 3}, "gradient_length is 3"),
        ({**TEACHER, "teacher_coef_end": 0.1}, "teacher_coef_end is 0.1"),
    ],
)
def test_options_of_ppo_without_effect_warn(options, message):
    with pytest.warns(UserWarning, match=message):
        make_ppo(TbpttPPO, 6, 4, **options)


def reduced(actions, labels):
    return (actions - labels).square().mean()


def writing(actions, labels):
    return (actions - labels.clamp_(-0.1, 0.1)).square()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (reduced, r"returned shape \(\), expected \(2, 3, [27]\)"),
        (writing, "writes into the 'labels' that it is given"),
    ],
)
@pytest.mark.parametrize("option", ["loss_type", "auxiliary.it.loss"])
def test_a_users_loss_is_called_once_before_anything_is_simulated(option, loss, reason):
    head = {"auxiliary": {"it": {"target": "state", "loss": loss}}}
    options: Any = {"loss_type": loss} if option == "loss_type" else head
    message = rf"{option} is <function {loss.__name__}.*, which fails on .*{reason}.*: .*per column"
    with pytest.raises(ValueError, match=message):
        make_distillation(TbpttDistillation, 6, 4, gradient_length=3, **options)


def test_a_gaussian_loss_needs_a_gaussian():
    options: dict[str, Any] = {"loss_type": "nll", "student_kwargs": {"distribution_cfg": None}}
    with pytest.raises(NotImplementedError, match=r"set 'student\.distribution_cfg'"):
        make_distillation(TbpttDistillation, 6, 4, gradient_length=3, **options)


def test_a_warning_points_at_the_code_that_chose_the_options():
    lengths: dict[str, Any] = {"gradient_length": 3}
    refusing: dict[str, Any] = {"non_finite": "raise", "max_skipped_updates": 3}
    with pytest.warns(UserWarning, match="max_skipped_updates is 3") as warned:
        make_distillation(TbpttDistillation, 6, 4, **refusing, **lengths)
    with pytest.warns(UserWarning, match="gradient_length is 15") as longer:
        make_distillation(TbpttDistillation, 6, 4, gradient_length=15)
    helpers = make_distillation.__code__.co_filename
    assert {warning.filename for warning in (*warned, *longer)} == {helpers}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_length": 15}, "gradient_length is 15, more than num_steps_per_env, 8"),
        ({"update_length": 9}, "update_length is 9, more than num_steps_per_env, 8"),
        (
            {"student": "mlp", "scan_engine": "compiled"},
            "scan_engine is 'compiled', which has no effect on a MLPModel",
        ),
    ],
)
def test_options_of_distillation_without_effect_warn(options, message):
    with pytest.warns(UserWarning, match=message):
        make_distillation(TbpttDistillation, 8, 4, **{"gradient_length": 2, **options})


@pytest.mark.parametrize(
    ("kind", "runner", "key", "meant"),
    [
        ("ppo", None, "num_step_per_env", "num_steps_per_env"),
        ("distillation", DistillationRunner, "Save-Interval", "save_interval"),
    ],
)
def test_a_mistyped_key_of_any_runner_is_refused(kind, runner, key, meant):
    mistyped: dict[str, Any] = {key: 5}
    with pytest.raises(ValueError, match=f"Unknown key '{key}' of .*: did you mean '{meant}'"):
        make_runner(None, kind, runner, **mistyped)


@pytest.mark.parametrize(("kind", "role"), [("ppo", "critic"), ("distillation", "student")])
@pytest.mark.parametrize("name", ["RNNModel", "rsl_rl.models:RNNModel", RNNModel])
def test_a_cell_that_rsl_rls_model_would_take_for_an_lstm_is_refused(kind, role, name):
    models: Any = {role: {"class_name": name, "rnn_type": "sru", "hidden_dims": [8]}}
    message = rf"{role}\.rnn_type is 'sru', expected 'lstm' or 'gru'.*models:RecurrentModel"
    with pytest.raises(ValueError, match=message):
        make_runner(None, kind, **models)


@pytest.mark.parametrize("runner", [OnPolicyRunner, None], ids=["stock", "ours"])
def test_keys_of_platforms_and_of_users_runners_are_accepted(runner):
    own = {"eval_interval": 5, "log_interval": 1, "curriculum": {}, "git_hash": "0a1b"}
    platforms = {"experiment_name": "x", "wandb_tags": (), "upload_model": True, "load_run": ".*"}
    make_runner(None, "ppo", runner, **platforms, **own)


@pytest.mark.parametrize(
    ("name", "value"), [("save_buffer", True), ("buffer_share", 0.5), ("buffer_gb", None)]
)
def test_options_of_a_missing_replay_buffer_warn(name, value):
    message = f"{name} is {value}, which has no effect without buffer_rollouts"
    with pytest.warns(UserWarning, match=message):
        DistillationOptions.parse({"buffer_rollouts": 0, name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistillationOptions.parse({"buffer_rollouts": 1, name: value})
        DistillationOptions.parse({"buffer_rollouts": 0})


@pytest.mark.parametrize(
    ("make", "algorithm"), [(make_ppo, TbpttPPO), (make_distillation, TbpttDistillation)]
)
def test_every_other_option_says_that_it_cannot_change(make, algorithm):
    training = make(algorithm, 6, 4, gradient_length=3)
    others = {"learning_rate", "optimizer", "extensions"}  # the last has the extensions themselves
    fixed = vars(training.options).keys() - {*CHANGEABLE, *others}
    assert len(fixed) > 20
    for name in fixed:
        old = getattr(training.options, name)
        message = rf"{name} is 'x', expected {re.escape(repr(old))}, for which the algorithm was"
        with pytest.raises(AttributeError, match=message + ".* max_grad_norm, learning_rate.$"):
            setattr(training, name, "x")
        assert getattr(training, name, old) == getattr(training.options, name) == old


def test_a_change_is_checked_like_a_config():
    training = make_ppo(TbpttPPO, 6, 4)
    with pytest.raises(ValueError, match="entropy_coef is 'high', expected a finite number"):
        training.entropy_coef = "high"
    with pytest.raises(ValueError, match="learning_rate is 0, expected a positive number"):
        training.learning_rate = 0
    falling = make_distillation(TbpttDistillation, 6, 4, gradient_length=3, learning_rate_updates=9)
    with pytest.raises(AttributeError, match="with learning_rate_updates 9, which sets it in each"):
        falling.learning_rate = 1e-4
    assert training.options.entropy_coef == training.entropy_coef == 0.01


def test_models_without_a_distribution_are_refused_before_a_rollout():
    runner = make_runner(None, student=model_cfg("RNNModel", distribution_cfg=None))
    with pytest.raises(ValueError, match=r"student.distribution_cfg is None, expected a distribut"):
        runner.learn(1)
    assert runner.alg.storage.step == 0


def test_symmetry_is_refused():
    with pytest.raises(NotImplementedError, match=r"symmetry_cfg is set, .* no hidden state"):
        make_ppo(TbpttPPO, 6, 4, symmetry_cfg={"use_mirror_loss": True})
