"""Checkpoints: interchangeable with rsl_rl, checked before anything changes."""

import pickle

import pytest
import torch
from helpers import make_distillation, make_model, parameters_of, roll_out
from rsl_rl.algorithms import Distillation

from rsl_tbptt.algorithms import TbpttDistillation


def make(algorithm_class=TbpttDistillation, **kwargs):
    return make_distillation(algorithm_class, 6, 4, gradient_length=3, **kwargs)


def ppo_checkpoint(path, **kwargs):
    actor = make_model("teacher", "mlp", 4, seed=9, **kwargs)
    torch.save({"actor_state_dict": actor.state_dict(), "iter": 7, "infos": None}, path)
    return actor


@pytest.mark.parametrize("student", ["mlp", "lstm"])
@pytest.mark.parametrize(
    ("writer", "reader"), [(TbpttDistillation, Distillation), (Distillation, TbpttDistillation)]
)
def test_distillation_checkpoints_are_interchangeable(writer, reader, student):
    source, target = make(writer, student=student), make(reader, student=student)
    roll_out(source, 0)
    source.update()
    assert target.load(source.save(), None, strict=True) is True
    assert target.teacher_loaded
    assert torch.equal(parameters_of(target), parameters_of(source))
    assert (
        target.optimizer.state_dict()["state"].keys()
        == source.optimizer.state_dict()["state"].keys()
    )


def test_a_ppo_checkpoint_loads_the_teacher_only():
    algorithm = make()
    before = parameters_of(algorithm)
    actor = make_model("teacher", "mlp", 4, seed=9)
    assert algorithm.load({"actor_state_dict": actor.state_dict()}, None, strict=True) is False
    assert algorithm.teacher_loaded
    assert torch.equal(parameters_of(algorithm), before)
    assert torch.equal(algorithm.teacher.mlp[0].weight, actor.mlp[0].weight)


def test_a_ppo_checkpoint_has_no_student_to_load():
    checkpoint = {"actor_state_dict": make().teacher.state_dict(), "iter": 0}
    with pytest.raises(ValueError, match=r"no 'student_state_dict'.*not its teacher's"):
        make().load(checkpoint, {"student": True}, strict=True)


def test_teacher_checkpoint_loads_the_teacher(tmp_path):
    actor = ppo_checkpoint(tmp_path / "teacher.pt")
    algorithm = make(teacher_checkpoint=str(tmp_path / "teacher.pt"))
    assert algorithm.teacher_loaded
    assert torch.equal(algorithm.teacher.mlp[0].weight, actor.mlp[0].weight)


def test_a_missing_or_damaged_teacher_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.pt' does not exist"):
        make(teacher_checkpoint=str(tmp_path / "nowhere.pt"))
    ppo_checkpoint(tmp_path / "cut.pt")
    content = (tmp_path / "cut.pt").read_bytes()
    for broken in (content[: len(content) // 2], b"", b"text"):
        (tmp_path / "cut.pt").write_bytes(broken)
        with pytest.raises(ValueError, match=r"cut\.pt' cannot be read"):
            make(teacher_checkpoint=str(tmp_path / "cut.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list, not a dict"):
        make(teacher_checkpoint=str(tmp_path / "list.pt"))
    torch.save({"model_state_dict": {}}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match="neither 'teacher_state_dict' nor 'actor_state_dict'"):
        make(teacher_checkpoint=str(tmp_path / "old.pt"))


class Payload:
    def __reduce__(self):
        return (print, ("code from a checkpoint ran",))


def test_code_in_a_checkpoint_does_not_run(tmp_path, capsys):
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"actor_state_dict": Payload()}, protocol=2))
    with pytest.raises(ValueError, match="cannot be read"):
        make(teacher_checkpoint=str(tmp_path / "evil.pt"))
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"distribution_cfg": None}, "lacks 'distribution.std_param' of the teacher: remove"),
        (
            {"obs_normalization": True},
            "holds 'obs_normalizer.*set 'teacher.obs_normalization' to True",
        ),
        (
            {"hidden_dims": [9]},
            r"'mlp.0.weight' has shape \(9, 7\) in the checkpoint, expected \(8, 7\)",
        ),
        ({"hidden_dims": [8, 8]}, "'mlp.2.weight' has shape|holds 'mlp"),
    ],
)
def test_a_teacher_of_another_architecture_is_refused_unchanged(tmp_path, kwargs, message):
    ppo_checkpoint(tmp_path / "teacher.pt", **kwargs)
    with pytest.raises(ValueError, match=message):
        make(teacher_checkpoint=str(tmp_path / "teacher.pt"))
    algorithm = make()
    before = torch.nn.utils.parameters_to_vector(algorithm.teacher.parameters()).clone()
    with pytest.raises(ValueError, match=message):
        algorithm.load(torch.load(tmp_path / "teacher.pt"), None, strict=True)
    after = torch.nn.utils.parameters_to_vector(algorithm.teacher.parameters())
    assert torch.equal(before, after)
    assert not algorithm.teacher_loaded


def test_a_recurrent_checkpoint_for_a_memoryless_teacher_names_the_class(tmp_path):
    actor = make_model("teacher", "lstm", 4, seed=9)
    torch.save({"actor_state_dict": actor.state_dict()}, tmp_path / "teacher.pt")
    with pytest.raises(ValueError, match=r"set 'teacher\.class_name' to 'RNNModel'"):
        make(teacher_checkpoint=str(tmp_path / "teacher.pt"))


def test_a_student_of_another_architecture_is_refused():
    source = make(student="gru")
    with pytest.raises(ValueError, match=r"'rnn\..* for the student"):
        make(student="lstm").load(source.save(), None, strict=True)
