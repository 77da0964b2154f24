"""The replay buffer: a uniform sample of all sequences, exact weights, nothing broken."""

import pytest
import torch
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from support.helpers import (
    ACTION_DIM,
    OBS_DIM,
    hold_frames,
    make_distillation,
    make_model,
    make_obs,
    parameters_of,
    roll_out,
)
from support.tolerances import SAME_FLOAT32
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.replay_buffer import ReplayBuffer
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.rollout import Rollout

T, N = 6, 5


def make(**options):
    chosen = {"gradient_length": 3, "num_mini_batches": 2, "buffer_rollouts": 4, **options}
    return make_distillation(TbpttDistillation, T, N, **chosen)


def numbered_rollout(first, num_envs=N, num_steps=T):
    """Return a rollout all of whose values are the number of their sequence, and the state."""
    numbers = torch.arange(first, first + num_envs, dtype=torch.float32)
    steps = numbers.expand(num_steps, num_envs).unsqueeze(-1)
    obs = TensorDict({"policy": steps, "image": steps.to(torch.uint8)}, [num_steps, num_envs])
    dones = torch.zeros(num_steps, num_envs, dtype=torch.bool)
    return Rollout.from_dones(obs, {"actions": steps}, dones), numbers.view(1, -1, 1)


def filled(capacity, num_rollouts, num_envs=N):
    memory = ReplayBuffer(capacity, *numbered_rollout(0, num_envs))
    for index in range(num_rollouts):
        memory.put(*numbered_rollout(index * num_envs, num_envs))
        memory.keep_newest(T)
    return memory


def kept_numbers(memory):
    """Return which sequences are kept, after checking that each is whole."""
    kept = slice(memory.num_kept)
    numbers = memory.state[0, kept, 0]
    for tensor in (*memory.rollout.obs.values(), memory.rollout.labels["actions"]):
        assert torch.equal(tensor[:, kept, 0].float(), numbers.expand(T, -1))
    return sorted(map(int, numbers.tolist()))


def test_everything_is_kept_until_the_memory_is_full():
    for num_rollouts in range(4):
        assert kept_numbers(filled(17, num_rollouts)) == list(range(num_rollouts * N))


@pytest.mark.parametrize("capacity", [3, 12])
def test_a_full_memory_holds_distinct_sequences(capacity):
    numbers = kept_numbers(filled(capacity, 9))
    assert len(set(numbers)) == capacity


def test_every_sequence_of_all_times_is_as_likely_to_be_kept():
    torch.manual_seed(0)
    capacity, num_rollouts, trials = 8, 6, 1500
    counts = torch.zeros(num_rollouts * N)
    for _ in range(trials):
        counts[kept_numbers(filled(capacity, num_rollouts))] += 1
    share = capacity / len(counts)
    # Inclusions of one trial are negatively correlated, which makes chi-square a little too strict.
    chi_square = ((counts - trials * share).square() / (trials * share * (1 - share))).sum()
    assert chi_square < 53.7  # 29 degrees of freedom: exceeded by chance in 0.35 % of all seeds


def test_nothing_of_what_was_kept_comes_back_after_loading():
    memory, saved = filled(4 * N, num_rollouts=4), filled(4 * N, num_rollouts=1)
    memory.load_state_dict(saved.state_dict())
    assert kept_numbers(memory) == [*range(N)]
    memory.put(*numbered_rollout(10 * N))
    memory.keep_newest(T)
    assert kept_numbers(memory) == [*range(N), *range(10 * N, 11 * N)]


def test_values_keep_their_dtype():
    memory = filled(12, 3)
    assert memory.rollout.obs["image"].dtype == torch.uint8
    assert memory.rollout.obs["policy"].dtype == torch.float32


@pytest.mark.parametrize("num_mini_batches", [1, 2, 5])
def test_no_environment_of_the_newest_rollout_is_left_out(num_mini_batches):
    algorithm = make(num_mini_batches=num_mini_batches)
    for seed in range(2):
        roll_out(algorithm, seed)
        algorithm.update()
    experience = algorithm.experience
    experience.plan()
    for _ in range(3):
        drawn = list(experience.draw())
        assert len(drawn) == num_mini_batches
        assert sorted(torch.cat([d.envs for d in drawn]).tolist()) == list(range(N))
        kept = torch.cat([d.kept for d in drawn]).tolist()
        assert len(set(kept)) == len(kept) == N
        assert set(kept) <= set(range(2 * N))
        assert [d.num_sequences for d in drawn] == [len(d.envs) + len(d.kept) for d in drawn]


def reference_gradient(student, rollouts, divisor):
    """Return the gradient of the sum of squared errors of rollouts, stepped through one by one."""
    student.zero_grad()
    for obs, labels, dones, state in rollouts:
        student.reset(hidden_state=state)
        total = torch.zeros(())
        for step in range(len(dones)):
            if step > 0:
                before = student.get_hidden_state()
                student.reset(hidden_state=hidden_state.clear(before, dones[step - 1]))
            total = total + (student(obs[step]) - labels[step]).square().mean(-1).sum()
        (total / divisor).backward()
    return torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def recorded(algorithm):
    """Return the stored rollout as ``reference_gradient`` takes it."""
    storage = algorithm.storage
    return (
        storage.observations.clone(),
        storage.privileged_actions.clone(),
        storage.dones.squeeze(-1).bool(),
        hidden_state.clone(algorithm.experience.start_state),
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("student", ["lstm", "gru", "mlp", "cnn-gru"])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_gradient_is_that_of_the_mean_over_fresh_and_old_samples(student, num_micro_batches):
    algorithm = make(
        student=student,
        num_mini_batches=1,
        buffer_share=100.0,  # all there are
        gradient_length=T,
        num_micro_batches=num_micro_batches,
        optimizer="sgd",
        learning_rate=1.0,
        max_grad_norm=None,
    )
    reference = make_model("student", student, N, seed=1)
    rollouts = []
    for index in range(3):
        on_step = hold_frames(1 + index) if student == "cnn-gru" else None
        roll_out(algorithm, seed=index, on_step=on_step)
        rollouts.append(recorded(algorithm))
        reference.load_state_dict(algorithm.student.state_dict())
        before = parameters_of(algorithm)
        algorithm.update()
        expected = reference_gradient(reference, rollouts, len(rollouts) * N * T)
        # The noise of actions, which comes first, has no gradient.
        found = (before - parameters_of(algorithm))[-len(expected) :]
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_micro_batches_leave_the_parameters_of_several_updates():
    results = []
    for num_micro_batches in (1, 2):
        algorithm = make(num_micro_batches=num_micro_batches)
        for seed in range(3):
            roll_out(algorithm, seed)
            algorithm.update()
        results.append(parameters_of(algorithm))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_the_student_goes_on_from_the_states_of_its_environments():
    """At fixed parameters the replay's last states are those of the rollout, in their order."""
    algorithm = make(num_mini_batches=3, learning_rate=1e-30, num_learning_epochs=2)
    for seed in range(3):
        roll_out(algorithm, seed)
        expected = hidden_state.clone(algorithm.student.get_hidden_state())
        algorithm.update()
        found = algorithm.student.get_hidden_state()
        for want, have in zip(as_tensors(expected), as_tensors(found), strict=True):
            torch.testing.assert_close(have, want, **SAME_FLOAT32)


def test_what_is_logged_tells_the_newest_rollout_from_the_past():
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


def test_steps_that_no_loss_sees_are_neither_kept_nor_run_again(monkeypatch):
    algorithm = make(gradient_length=4, tail="drop", num_mini_batches=1, buffer_share=100.0)
    seen, accumulate = [], algorithm._student.accumulate

    def counting(group, rollout, *rest, **options):
        seen.append((group[-1].num_loss_steps, rollout.num_envs))
        return accumulate(group, rollout, *rest, **options)

    monkeypatch.setattr(algorithm._student, "accumulate", counting)
    roll_out(algorithm, 0)
    algorithm.update()
    kept = algorithm.experience.buffer.rollout.obs["policy"][:, N : 2 * N]
    kept.fill_(7.0)
    roll_out(algorithm, 1)
    algorithm.update()
    assert (kept[:4] != 7.0).all()
    assert (kept[4:] == 7.0).all()
    assert seen == [(4, N), (0, N), (4, 2 * N), (0, N)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("poisoned", ["observations", "labels", "state"])
@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_what_is_not_finite_never_enters(poisoned, bad):
    algorithm = make()
    memory = None
    for seed in range(3):
        roll_out(algorithm, seed)
        if seed == 1:
            targets = {
                "observations": algorithm.storage.observations["policy"][2, 1],
                "labels": algorithm.storage.privileged_actions[2, 1],
                "state": algorithm.experience.start_state[1][:, 1],
            }
            with torch.inference_mode():
                targets[poisoned][..., 0] = bad
        metrics = algorithm.update()
        assert ("behavior" not in metrics) == (seed == 1)
        memory = algorithm.experience.buffer
        assert memory.num_kept == N * (seed + 1 - (seed >= 1))
        for tensor in memory.state_dict()["sequences"]:
            assert tensor.isfinite().all()
    assert parameters_of(algorithm).isfinite().all()


def test_a_resumed_run_has_the_saved_memory_or_an_empty_one(tmp_path):
    algorithm = make(save_buffer=True)
    for seed in range(2):
        roll_out(algorithm, seed)
        algorithm.update()
    torch.save(algorithm.save(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    for save_buffer, num_kept in ((True, 2 * N), (False, 0)):
        resumed = make(save_buffer=save_buffer)
        resumed.load(loaded, None, strict=True)
        roll_out(resumed, 2)
        resumed.experience.take()
        memory = resumed.experience.buffer
        assert memory.num_kept == num_kept
        if save_buffer:
            saved = algorithm.experience.buffer.state_dict()
            assert all(map(torch.equal, memory.state_dict()["sequences"], saved["sequences"]))
    smaller = make(save_buffer=True, buffer_rollouts=1)
    smaller.load(loaded, None, strict=True)
    roll_out(smaller, 2)
    smaller.experience.take()
    assert smaller.experience.buffer.num_kept == N


def test_loading_a_student_into_a_running_training_empties_the_memory():
    algorithm = make()
    roll_out(algorithm, 0)
    algorithm.update()
    algorithm.load(algorithm.save(), None, strict=True)
    assert algorithm.experience.buffer.num_kept == 0


def test_a_saved_memory_of_other_sequences_is_refused():
    algorithm = make(save_buffer=True)
    roll_out(algorithm, 0)
    algorithm.update()
    longer = make_distillation(
        TbpttDistillation, T + 1, N, gradient_length=3, buffer_rollouts=4, save_buffer=True
    )
    longer.load(algorithm.save(), None, strict=True)
    refused = pytest.raises(ValueError, match="set save_buffer to False to begin with an empty one")
    for _ in range(2):  # again: what was refused is not forgotten
        roll_out(longer, 1)
        with refused:
            longer.update()


def test_a_refused_memory_leaves_a_running_training_as_it_was():
    algorithm, longer = (
        make_distillation(
            TbpttDistillation, steps, N, gradient_length=3, buffer_rollouts=4, save_buffer=True
        )
        for steps in (T, T + 1)
    )
    for each in (algorithm, longer):
        roll_out(each, 0)
        each.update()
    before = parameters_of(longer)
    with pytest.raises(ValueError, match="set save_buffer to False"):
        longer.load(algorithm.save(), None, strict=True)
    assert torch.equal(parameters_of(longer), before)
    assert longer.experience.buffer.num_kept == N


def test_gigabytes_bound_the_memory():
    algorithm = make(buffer_rollouts=1000, buffer_gb=1e-4)
    roll_out(algorithm, 0)
    algorithm.experience.take()
    memory = algorithm.experience.buffer
    each = 4 * (T * (5 + 2) + 2 * 6) + 2 * T + 8
    assert memory.capacity == int(1e5 / each) - N
    assert algorithm.memory_plan().sizes.replay_buffer == (memory.capacity + N) * each
    small = make(buffer_gb=1e-6)
    roll_out(small, 0)
    with pytest.raises(ValueError, match=r"buffer_gb is 1e-06, expected at least 1\.42e-06"):
        small.update()


def test_playing_allocates_nothing():
    algorithm = make(buffer_rollouts=10**9, buffer_gb=None)
    algorithm.load(algorithm.save(), None, strict=True)
    assert algorithm.experience.buffer is None


class ByteStudent(MLPModel):
    """A student that is given bytes."""

    def get_latent(self, obs, masks=None, hidden_state=None):
        assert obs["policy"].dtype == torch.uint8
        return super().get_latent(obs.apply(lambda values: values.float() / 255))


def test_observations_are_kept_and_replayed_in_the_dtype_they_came_in():
    obs = make_obs(N)
    obs["policy"] = torch.randint(256, (N, OBS_DIM), dtype=torch.uint8)
    storage = RolloutStorage("distillation", N, T, obs, [ACTION_DIM], "cpu")
    if storage.observations["policy"].dtype != torch.uint8:
        pytest.skip("this release of rsl_rl stores floats")
    student = ByteStudent(obs, {"student": ["policy"]}, "student", ACTION_DIM, [8])
    teacher = make_model("teacher", "mlp", N, seed=2)
    algorithm = TbpttDistillation(student, teacher, storage, buffer_rollouts=2, gradient_length=T)
    for _ in range(3):
        with torch.inference_mode():
            for _ in range(T):
                algorithm.act(obs)
                algorithm.process_env_step(obs, torch.zeros(N), torch.zeros(N), {})
        assert "behavior" in algorithm.update()
    memory = algorithm.experience.buffer
    assert memory is not None
    assert memory.rollout.obs["policy"].dtype == torch.uint8


@pytest.mark.parametrize("save_buffer", [False, True])
@pytest.mark.parametrize("broken", ["optimizer_state_dict", "student_state_dict"])
def test_a_checkpoint_that_cannot_be_loaded_takes_no_past(save_buffer, broken):
    algorithm = make(save_buffer=save_buffer)
    other = make(save_buffer=True)
    for each, seeds in ((algorithm, (0, 1)), (other, (2,))):
        for seed in seeds:
            roll_out(each, seed)
            each.update()
    loaded = other.save()
    del loaded[broken]
    memory = algorithm.experience.buffer
    before = memory.state_dict()["sequences"]
    with pytest.raises((KeyError, ValueError)):
        algorithm.load(loaded, {"student": True, "optimizer": True}, strict=False)
    assert memory.num_kept == 2 * N
    assert all(map(torch.equal, memory.state_dict()["sequences"], before))


def test_a_memory_that_does_not_fit_is_refused_before_anything_is_loaded():
    algorithm, other = make(save_buffer=True), make(save_buffer=True)
    for each, seed in ((algorithm, 0), (other, 1)):
        roll_out(each, seed)
        each.update()
    loaded, before = other.save(), parameters_of(algorithm)
    loaded["rsl_tbptt"]["buffer"]["sequences"][0] = torch.zeros(T, N, 1)
    with pytest.raises(ValueError, match="set save_buffer to False to begin with an empty one"):
        algorithm.load(loaded, None, strict=True)
    assert torch.equal(parameters_of(algorithm), before)
    assert algorithm.experience.buffer.num_kept == N
