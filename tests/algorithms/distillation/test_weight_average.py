"""The average of the weights is deployed, the newest ones act and are trained."""

import pytest
import torch
from support.helpers import make_distillation, parameters_of, train
from support.inside import assert_same, networks_of_heads, saved, through_a_file
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.weight_average import DECAY

T, N = 6, 4
HEADS = {"velocity": {"target": "state"}}

pytestmark = pytest.mark.usefixtures("float64")


def make(student="mlp", **options):
    """Build an algorithm; by default labels and states do not depend on who acts."""
    torch.manual_seed(0)
    options = {"gradient_length": 3, "weight_average": True, **options}
    return make_distillation(TbpttDistillation, T, N, student=student, **options)


def update(algorithm, *seeds, **options):
    for seed in seeds:
        train(algorithm, seed, **options)


def deployed(algorithm):
    """Return the parameters that are deployed."""
    return parameters_to_vector(algorithm.get_policy().parameters())


@pytest.mark.parametrize("student", ["mlp", "lstm", "cnn-gru"])
def test_the_average_by_its_definition_and_the_training_of_one_without(student):
    averaging, plain = make(student), make(student, weight_average=False)
    newest = []
    for seed in range(4):
        for algorithm in (averaging, plain):
            update(algorithm, seed)
        newest.append(parameters_of(plain))
        assert torch.equal(parameters_of(averaging), newest[-1])
        assert torch.equal(deployed(plain), newest[-1])
        assert_same(averaging.student.get_hidden_state(), plain.student.get_hidden_state())
        average = newest[0]
        for t, weights in enumerate(newest[1:], start=2):
            average = average + (DECAY + 1) / (t + DECAY) * (weights - average)
        torch.testing.assert_close(deployed(averaging), average, rtol=1e-12, atol=1e-12)
        saved = averaging.save()["student_state_dict"]  # which rsl_rl and PPO load
        assert_same(saved, averaging.get_policy().state_dict())
        noise = averaging.get_policy().output_std  # that runners log
        assert torch.equal(noise, averaging.student.output_std)
        assert plain.get_policy() is plain.student
    assert not torch.equal(deployed(averaging), newest[-1])


def test_heads_are_averaged_with_the_student():
    algorithm = make(auxiliary=HEADS)
    update(algorithm, 0, 1)
    part = algorithm.save()["rsl_tbptt"]
    saved = part["auxiliary"]["modules"]["velocity"]
    (head,) = networks_of_heads(algorithm)
    for name, parameter in head.named_parameters():
        newest = part["weight_average"]["newest"][f"auxiliary/velocity.{name}"]
        assert torch.equal(newest, parameter)
        assert not torch.equal(saved[name], parameter)


def test_a_checkpoint_holds_both_and_a_loaded_policy_deploys_the_average():
    algorithm, loaded, playing = make(student="lstm"), make(student="lstm"), make(student="lstm")
    update(algorithm, 0, 1)
    checkpoint = through_a_file(algorithm.save())
    for each in (loaded, playing):
        each.load(checkpoint, None, strict=True)
        assert torch.equal(deployed(each), deployed(algorithm))
        assert torch.equal(parameters_of(each), parameters_of(algorithm))
    plain = make(student="lstm", weight_average=False)
    plain.load(checkpoint, None, strict=True)
    assert torch.equal(parameters_of(plain), deployed(algorithm))


def test_looks_in_the_midst_of_a_rollout_change_no_training():
    algorithm, reference = make(), make()

    def look(step, _):
        if step == 3:
            algorithm.save()
            deployed(algorithm)

    for each in (algorithm, reference):
        update(each, 0, 1)
    update(algorithm, 2, on_step=look)
    update(reference, 2)
    assert_same(saved(algorithm), saved(reference))


def test_the_normaliser_of_the_average_is_that_of_the_student():
    algorithm = make(student_kwargs={"obs_normalization": True})
    update(algorithm, 0)
    ours, average = algorithm.student.obs_normalizer, algorithm.get_policy().obs_normalizer
    assert ours.count == average.count == T * N
    assert_same([*ours.buffers()], [*average.buffers()])
