"""The replay buffer: a uniform sample of all sequences, exact weights, whole sequences."""

import pytest
import torch
from support.helpers import make_distillation, parameters_of, roll_out, train
from support.inside import assert_same, saved, through_a_file

from rsl_tbptt.algorithms import TbpttDistillation

T, N = 6, 5


def make(num_steps=T, **options):
    chosen = {"gradient_length": 3, "num_mini_batches": 2, "buffer_rollouts": 4, **options}
    return make_distillation(TbpttDistillation, num_steps, N, **chosen)


@pytest.mark.parametrize("num_mini_batches", [1, 2, 5])
def test_no_environment_of_the_newest_rollout_is_left_out(num_mini_batches):
    algorithm = make(num_mini_batches=num_mini_batches)
    train(algorithm, *range(2))
    roll_out(algorithm, 2)
    experience = algorithm.experience
    experience.take()
    passes = list(experience.draw(3))
    assert len(passes) == 3 * num_mini_batches
    for first in range(0, len(passes), num_mini_batches):
        drawn = passes[first : first + num_mini_batches]
        envs = torch.cat([d.envs for d in drawn])
        assert sorted(envs.tolist()) == list(range(N))
        newest = torch.cat([d.columns[: len(d.envs)] for d in drawn])
        assert torch.equal(newest, experience.buffer.newest[envs])
        past = torch.cat([d.columns[len(d.envs) :] for d in drawn]).tolist()
        assert len(set(past)) == len(past) == N
        assert set(past) <= set(experience.buffer.past.tolist())
        assert [d.num_sequences for d in drawn] == [len(d.columns) for d in drawn]


def test_metrics_separate_the_newest_rollout_from_old_samples():
    algorithm = make(learning_rate=1e-30, buffer_share=100.0)
    losses = []
    for seed in range(3):
        roll_out(algorithm, seed)
        storage = algorithm.storage
        metrics = algorithm.update()
        assert ("buffer" in metrics) == (seed > 0)
        losses.append(metrics["behavior"])
        if seed > 0:  # the parameters never moved
            assert metrics["buffer"] == pytest.approx(sum(losses[:-1]) / seed, rel=1e-5)
    assert metrics["optimizer_steps"] == 1 * 2 * 2
    assert storage.step == 0


@pytest.mark.parametrize("poisoned", ["observations", "labels", "state"])
@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_samples_that_are_not_finite_are_never_stored(poisoned):
    algorithm = make()
    buffer = None
    for seed in range(3):
        roll_out(algorithm, seed)
        if seed == 1:
            targets = {
                "observations": algorithm.storage.observations["policy"][2, 1],
                "labels": algorithm.storage.privileged_actions[2, 1],
                "state": algorithm.experience.start_state[1][:, 1],
            }
            with torch.inference_mode():
                targets[poisoned][..., 0] = torch.nan
        metrics = algorithm.update()
        assert ("behavior" not in metrics) == (seed == 1)
        buffer = algorithm.experience.buffer
        assert buffer.num_kept == N * (seed + 1 - (seed >= 1))
        for tensor in buffer.state_dict()["sequences"]:
            assert tensor.isfinite().all()
    assert parameters_of(algorithm).isfinite().all()


@pytest.mark.parametrize(
    ("save_buffer", "buffer_rollouts", "num_kept"), [(True, 4, 2 * N), (False, 4, 0), (True, 1, N)]
)
def test_a_resumed_run_has_the_saved_buffer_or_an_empty_one(save_buffer, buffer_rollouts, num_kept):
    algorithm = make(save_buffer=True)
    train(algorithm, *range(2))
    resumed = make(save_buffer=save_buffer, buffer_rollouts=buffer_rollouts)
    resumed.load(through_a_file(algorithm.save()), None, strict=True)
    roll_out(resumed, 2)
    resumed.experience.take()
    assert resumed.experience.buffer.num_kept == num_kept


def test_loading_a_student_into_a_running_training_empties_the_buffer():
    algorithm = make()
    train(algorithm, 0)
    algorithm.load(algorithm.save(), None, strict=True)
    assert "buffer" not in train(algorithm, 1)


def test_a_saved_buffer_that_does_not_fit_is_refused():
    num_steps, message = T + 1, "set save_buffer to False to begin with an empty one"
    algorithm = make(save_buffer=True)
    train(algorithm, 0)
    checkpoint = algorithm.save()
    make(num_steps).load(checkpoint, None, strict=True)
    resumed = make(num_steps, save_buffer=True)
    resumed.load(checkpoint, None, strict=True)
    for _ in range(2):  # again, because the refused buffer is still there
        roll_out(resumed, 1)
        with pytest.raises(ValueError, match=message):
            resumed.update()


def test_gigabytes_bound_the_buffer():
    algorithm = make(buffer_rollouts=1000, buffer_gb=1e-4)
    roll_out(algorithm, 0)
    algorithm.experience.take()
    buffer = algorithm.experience.buffer
    each = 4 * (T * (5 + 2) + 2 * 6) + 2 * T + 8
    assert buffer.capacity == int(1e5 / each) - N
    small = make(buffer_gb=1e-6)
    roll_out(small, 0)
    with pytest.raises(ValueError, match=r"buffer_gb is 1e-06, expected at least 1\.42e-06"):
        small.update()


def test_playing_allocates_nothing():
    algorithm = make(buffer_rollouts=10**9, buffer_gb=None)
    algorithm.load(algorithm.save(), None, strict=True)
    assert algorithm.experience.buffer is None


@pytest.mark.parametrize(("missing", "num_steps"), [("student_state_dict", T), ("", T + 1)])
def test_a_checkpoint_that_cannot_be_loaded_leaves_a_running_training_as_it_was(missing, num_steps):
    algorithm, other = make(save_buffer=True), make(num_steps, save_buffer=True)
    train(algorithm, 0, 1)
    train(other, 2)
    checkpoint = {key: value for key, value in other.save().items() if key != missing}
    before = saved(algorithm)
    with pytest.raises(ValueError, match=missing or "set save_buffer to False"):
        algorithm.load(checkpoint, {"student": True, "optimizer": True}, strict=True)
    assert_same(saved(algorithm), before)
