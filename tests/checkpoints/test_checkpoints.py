"""Checkpoints: interchangeable with rsl_rl, checked before anything changes."""

import copy

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.runners import DistillationRunner
from support.fine_tuning import distillation_cfg, save_untrained
from support.helpers import make_distillation, make_model, make_ppo, parameters_of, roll_out, train
from support.inside import assert_same, everything

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt_tasks.memory import RecallEnv

BOOTSTRAPPED = "ignore:Time-outs are bootstrapped with the value"


def make(algorithm_class=TbpttDistillation, **kwargs):
    return make_distillation(algorithm_class, 6, 4, gradient_length=3, **kwargs)


def same_first_layer(one, other):
    return torch.equal(one.mlp[0].weight, other.mlp[0].weight)


def ppo_checkpoint(path, kind="mlp", **kwargs):
    actor = make_model("teacher", kind, 4, seed=9, **kwargs)
    torch.save({"actor_state_dict": actor.state_dict(), "iter": 7, "infos": None}, path)
    return actor


def reinforcing(algorithm_class=TbpttPPO, **kwargs):
    return make_ppo(algorithm_class, 6, 4, **kwargs)


SHARED = {"actor": "cnn", "critic": "sharing"}


@pytest.mark.filterwarnings(BOOTSTRAPPED, "ignore:optimizer contains a parameter group with dup")
@pytest.mark.parametrize(
    ("build", "writer", "reader", "options"),
    [
        *((make, TbpttDistillation, Distillation, {"student": kind}) for kind in ("mlp", "lstm")),
        *((make, Distillation, TbpttDistillation, {"student": kind}) for kind in ("mlp", "lstm")),
        *((reinforcing, TbpttPPO, PPO, models) for models in ({}, SHARED)),
        *((reinforcing, PPO, TbpttPPO, models) for models in ({}, SHARED)),
    ],
)
def test_checkpoints_are_interchangeable_with_rsl_rl(build, writer, reader, options):
    source, target = build(writer, **options), build(reader, **options)
    train(source, 0)
    checkpoint = source.save()
    assert set(checkpoint) - {"rsl_tbptt"} == set(target.save()) - {"rsl_tbptt"}
    assert target.load(checkpoint, None, strict=True) is True
    assert torch.equal(parameters_of(target), parameters_of(source))
    read, written = (each.optimizer.state_dict() for each in (target, source))
    assert read["state"].keys() == written["state"].keys()
    # The rate is the optimizer's: rsl_rl 5.0's PPO does not copy it to its `learning_rate`.
    assert read["param_groups"][0]["lr"] == written["param_groups"][0]["lr"]
    if build is make:
        assert target.teacher_loaded
    if reader is TbpttDistillation:
        assert target.num_updates == 0  # rsl_rl does not count them


def without(name):
    return lambda saved: saved.pop(name)


def first_group(saved):
    return saved["optimizer_state_dict"]["param_groups"][0]


@pytest.mark.filterwarnings(BOOTSTRAPPED)
@pytest.mark.parametrize("build", [make, reinforcing])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("optimizer_state_dict"), "lacks 'optimizer_state_dict'"),
        (lambda saved: first_group(saved)["params"].pop(), "has"),
        (lambda saved: first_group(saved).pop("betas"), "betas"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_refused_before_anything_is_loaded(
    build, change, message
):
    source, target = build(), build()
    train(source, 0)
    checkpoint, before = copy.deepcopy(source.save()), everything(target)
    change(checkpoint)
    with pytest.raises(ValueError, match=f"checkpoint.*{message}"):
        target.load(checkpoint, None, strict=True)
    assert_same(everything(target), before)
    models = dict.fromkeys(("student", "teacher") if build is make else ("actor", "critic"), True)
    target.load(checkpoint, models, strict=True)
    assert torch.equal(parameters_of(target), parameters_of(source))


@pytest.mark.parametrize(
    ("build", "checkpoint", "message"),
    [
        (make, lambda: make(student="gru").save(), r"'rnn\..* for the student"),
        (
            make,
            lambda: {**make().save(), "teacher_state_dict": {"teachers.walk.mlp.0.bias": None}},
            r"'teachers\.walk.* lacks: several teachers are a controller of your own now",
        ),
        (reinforcing, lambda: {"infos": {}}, "lacks 'actor_state_dict', it holds"),
        (
            reinforcing,
            lambda: {"model_state_dict": {}},
            r"has a policy with \[\], expected rsl_rl 1 to 3's",
        ),
        (reinforcing, lambda: {"student_state_dict": {}}, r"lacks '.*' of the actor"),
        (reinforcing, lambda: reinforcing(critic="mlp").save(), "of the critic: |for the critic"),
        (reinforcing, lambda: reinforcing(actor="gru").save(), r"'rnn\..*for the actor"),
    ],
)
def test_a_checkpoint_of_other_models_is_named_and_changes_nothing(build, checkpoint, message):
    algorithm = build()
    before = everything(algorithm)
    with pytest.raises(ValueError, match=message):
        algorithm.load(checkpoint(), None, strict=True)
    assert_same(everything(algorithm), before)


def test_a_ppo_checkpoint_loads_the_teacher_only():
    algorithm = make()
    before = parameters_of(algorithm)
    actor = make_model("teacher", "mlp", 4, seed=9)
    assert algorithm.load({"actor_state_dict": actor.state_dict()}, None, strict=True) is False
    assert algorithm.teacher_loaded
    assert torch.equal(parameters_of(algorithm), before)
    assert same_first_layer(algorithm.teacher, actor)


def test_a_ppo_checkpoint_has_no_student_to_load():
    checkpoint = {"actor_state_dict": make().teacher.state_dict(), "iter": 0}
    with pytest.raises(ValueError, match=r"no 'student_state_dict'.*not its teacher's"):
        make().load(checkpoint, {"student": True}, strict=True)


def load_teacher(path):
    """Set the teacher's file and load the teacher, as the runner does when training starts."""
    make(teacher_checkpoint=str(path)).teacher_file.load()


def test_the_student_of_an_earlier_distillation_teaches_if_it_alone_has_the_form(tmp_path):
    path, student = tmp_path / "student.pt", make_model("teacher", "mlp", 4, seed=9)
    saved = {"student_state_dict": student.state_dict(), "iter": 1, "infos": None}
    torch.save(saved | {"teacher_state_dict": make(teacher="lstm").teacher.state_dict()}, path)
    algorithm = make(teacher_checkpoint=str(path))
    with pytest.warns(UserWarning, match=r"teacher is the student in .*student\.pt'"):
        algorithm.teacher_file.load()
    assert same_first_layer(algorithm.teacher, student)
    torch.save(saved | {"teacher_state_dict": make().teacher.state_dict()}, path)
    with pytest.raises(ValueError, match="teacher has the form of both, expected one of them"):
        load_teacher(path)


def test_a_missing_or_damaged_teacher_checkpoint_is_named(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "cut.pt").write_bytes(b"text")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"infos": {}}, tmp_path / "old.pt")
    for name, message in {
        "nowhere.pt": r"nowhere\.pt' does not exist",
        "cut.pt": r"cut\.pt' cannot be read",
        "list.pt": "holds a list, not a dict",
        "old.pt": "neither 'teacher_state_dict' nor 'actor_state_dict'",
        "other/latest": "holds no valid checkpoint",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_teacher(tmp_path / name)


@pytest.mark.parametrize("declared", [False, True])
def test_the_teacher_comes_from_its_file_even_if_it_is_declared_loaded(tmp_path, declared):
    """This is the README's snippet with its line on ``teacher_checkpoint``."""
    actor = ppo_checkpoint(tmp_path / "teacher.pt")
    algorithm = make(teacher_checkpoint=str(tmp_path / "teacher.pt"))
    if declared:
        algorithm.teacher_loaded = True
    assert algorithm.teacher_loaded  # which reads no file
    assert not same_first_layer(algorithm.teacher, actor)
    roll_out(algorithm, 0)
    assert same_first_layer(algorithm.teacher, actor)


@pytest.mark.parametrize("file", ["moved.pt", "other.pt"])
def test_a_student_is_played_and_resumed_with_the_teacher_of_its_checkpoint(file, tmp_path):
    """Even if the file of ``teacher_checkpoint`` has changed since."""
    source = runner()
    source.alg.teacher_loaded = True
    save_untrained(source, tmp_path / "student.pt")
    other = {key: value + 1 for key, value in source.alg.teacher.state_dict().items()}
    torch.save({"actor_state_dict": other}, tmp_path / "other.pt")
    resumed = runner(teacher_checkpoint=str(tmp_path / file))
    resumed.load(str(tmp_path / "student.pt"))
    obs = resumed.env.get_observations()
    assert torch.equal(resumed.get_inference_policy()(obs), source.get_inference_policy()(obs))
    resumed.learn(1)
    for name, value in source.alg.teacher.state_dict().items():
        assert torch.equal(resumed.alg.teacher.state_dict()[name], value)


def test_the_error_for_a_missing_checkpoint_names_both_ways_to_give_it():
    forgetful = runner()
    message = r"teacher_checkpoint is None .*runner.load\(FILE\).*--checkpoint FILE"
    with pytest.raises(ValueError, match=message):
        forgetful.learn(1)
    forgetful.alg.teacher_loaded = True  # as in the README for an untrained teacher
    forgetful.learn(1)


def runner(**options):
    return DistillationRunner(RecallEnv(2, 3), distillation_cfg(**options), log_dir=None)


def test_the_error_of_rsl_rls_ppo_for_a_students_checkpoint():
    """The message that docs/howto/isaaclab.md explains; TbpttPPO continues with the student."""
    checkpoint = {"student_state_dict": make_model("actor", "lstm", 4, seed=5).state_dict()}
    with pytest.raises(KeyError, match=r"^'actor_state_dict'$"):
        make_ppo(PPO, 6, 4).load(checkpoint, None, strict=True)
    assert make_ppo(TbpttPPO, 6, 4).load(checkpoint, None, strict=True) is False


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        ("lstm", {}, "set class_name to 'RNNModel' in the teacher's"),
        ("mlp", {"distribution_cfg": None}, "lacks 'distribution.std_param' of the teacher: rem"),
        (
            "mlp",
            {"obs_normalization": True},
            "holds 'obs_normalizer.*set obs_normalization to True",
        ),
        (
            "mlp",
            {"hidden_dims": [9]},
            r"'mlp.0.weight' has shape \(9, 7\) in the checkpoint, expected \(8, 7\)",
        ),
        ("mlp", {"hidden_dims": [8, 8]}, "'mlp.2.weight' has shape|holds 'mlp"),
    ],
)
def test_a_teacher_of_another_architecture_is_refused_unchanged(tmp_path, kind, kwargs, message):
    ppo_checkpoint(tmp_path / "teacher.pt", kind, **kwargs)
    with pytest.raises(ValueError, match=message):
        load_teacher(tmp_path / "teacher.pt")
    algorithm = make()
    before = copy.deepcopy(algorithm.teacher.state_dict())
    with pytest.raises(ValueError, match=message):
        algorithm.load(torch.load(tmp_path / "teacher.pt"), None, strict=True)
    assert_same(dict(algorithm.teacher.state_dict()), dict(before))
    with pytest.raises(ValueError, match="teacher_checkpoint is None and no checkpoint was loaded"):
        assert algorithm.teacher_loaded


def test_a_file_that_was_saved_without_checksums_is_valid(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"actor_state_dict": {"a": torch.ones(3)}}, tmp_path / "model_0.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_checkpoint(str(tmp_path / "model_0.pt"), "cpu")["actor_state_dict"]["a"].sum() == 3


def test_the_reason_why_a_file_cannot_be_read_is_a_sentence(tmp_path):
    """It is not torch's advice to run the code in the file."""
    torch.save({"a": torch.ones(3)}, tmp_path / "model.pt")
    content = (tmp_path / "model.pt").read_bytes()
    for broken in (content[:100], content[: len(content) // 2], b""):
        (tmp_path / "model.pt").write_bytes(broken)
        with pytest.raises(
            ValueError, match=r": [\w' ]+[^.]*\. Use another checkpoint of the run\.$"
        ):
            read_checkpoint(str(tmp_path / "model.pt"), "cpu")
    (tmp_path / "model.pt").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"it is no checkpoint: name a model_<iteration>\.pt of"):
        read_checkpoint(str(tmp_path / "model.pt"), "cpu")
    torch.save({"a": make}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"it holds .*\.make, expected tensors and plain values"):
        read_checkpoint(str(tmp_path / "model.pt"), "cpu")


@pytest.mark.parametrize("std", [True, False])
def test_a_teacher_with_another_number_of_actions_is_called_that(std):
    algorithm = make()
    state_dict = dict(algorithm.teacher.state_dict())
    for key, tensor in state_dict.items():
        if key.startswith("mlp.2.") or (std and key.startswith("distribution.")):
            state_dict[key] = torch.cat((tensor, tensor[:1]))
    with pytest.raises(
        ValueError, match=r"teacher has 3 outputs .*, expected 2: it was trained for"
    ):
        algorithm.load({"actor_state_dict": state_dict}, None, strict=True)
