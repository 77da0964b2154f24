"""``rsl-tbptt plan`` of students with a camera: frames are counted once, in the dtype they have."""

import copy

import pytest
import torch
import yaml

from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import Trained, load_platform
from rsl_tbptt.tools.simulate.plan import Planned, answer, filled, plan, roll_out
from rsl_tbptt_tasks.memory import RecallEnv

T, SIZE = 12, (12, 16)
OTHERS = {"policy": 2 * 4, "privileged": 3 * 4}
"""Bytes of the other groups in a step."""
NOISE = {"class_name": "GaussianDistribution", "init_std": 0.5}
AGENT = {
    "class_name": "DistillationRunner",
    "num_steps_per_env": T,
    "save_interval": 50,
    "obs_groups": {"student": ["policy", "camera"], "teacher": ["privileged"]},
    "algorithm": {
        "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
        "gradient_length": 6,
        "buffer_rollouts": 20,
    },
    "student": {
        "class_name": "rsl_tbptt.models:CNNRNNModel",
        "hidden_dims": [16],
        "rnn_type": "lstm",
        "rnn_hidden_dim": 8,
        "cnn_cfg": {"output_channels": [4], "kernel_size": 5, "stride": 3},
        "distribution_cfg": NOISE,
    },
    "teacher": {"class_name": "MLPModel", "hidden_dims": [16], "distribution_cfg": NOISE},
}


class CameraRecall(RecallEnv):
    """Recall with a camera that takes a random frame, of another kind for each test."""

    def __init__(self, num_envs, dtype, period):
        super().__init__(num_envs, recall_length=8)
        self.dtype, self.period, self.num_steps = dtype, period, 0

    def get_observations(self):
        if self.num_steps % self.period == 0:
            bytes_ = torch.randint(256, (self.num_envs, 1, *SIZE), dtype=torch.uint8)
            self.frames = bytes_ if self.dtype == torch.uint8 else bytes_ / 255
        self.num_steps += 1
        return super().get_observations().set("camera", self.frames)


def make_bytes(num_envs, seed, device):
    return CameraRecall(num_envs, torch.uint8, period=1)


def make_floats(num_envs, seed, device):
    return CameraRecall(num_envs, torch.float32, period=1)


def make_slow_bytes(num_envs, seed, device):
    return CameraRecall(num_envs, torch.uint8, period=4)


BYTES = {make_bytes: 1, make_slow_bytes: 1, make_floats: 4}
"""Bytes of a pixel."""


def of_camera(make, **options):
    agent = copy.deepcopy(AGENT)
    agent["algorithm"] |= options
    if BYTES[make] == 1:
        agent["student"]["image_scale"] = 1 / 255
    return Planned(load_platform("rsl_rl"), Trained(f"{__name__}:{make.__name__}", ""), agent)


def frame_bytes(make):
    return BYTES[make] * SIZE[0] * SIZE[1]


def column_bytes():
    """Return the bytes of a sequence in the replay buffer without its frames.

    A step has the student's observations, the row of its frame, an action, and whether an episode
    starts and whether the sequence is new; a sequence the LSTM's state and a key.
    """
    return T * (OTHERS["policy"] + 8 + 4 + 1 + 1) + 2 * 8 * 4 + 8


@pytest.mark.parametrize("make", BYTES)
def test_storage_has_every_frame_and_the_buffer_room_for_all_in_their_dtype(make):
    num_envs = 40
    (row,) = plan(of_camera(make, buffer_gb=None, held_out_envs=0), [num_envs])
    # The rewards, two actions and a byte for the end of an episode.
    step = frame_bytes(make) + sum(OTHERS.values()) + 3 * 4 + 1
    assert row.storage == T * num_envs * step
    frames = 21 * num_envs * T * frame_bytes(make)
    assert row.update.sizes.replay_buffer == 21 * num_envs * column_bytes() + frames
    assert row.update.sizes.most_envs == float("inf")


@pytest.mark.parametrize("make", BYTES)
def test_the_plan_is_what_a_full_buffer_holds(make):
    num_envs, limit = 24, 4e5 * BYTES[make]
    what = of_camera(make, buffer_gb=limit / 1e9, held_out_envs=0)
    (row,) = plan(what, [num_envs])
    env = make(num_envs, 0, "cpu")
    algorithm = filled(what, env, "cpu")
    kept = [-1, 0]
    while kept[-1] > kept[-2]:
        algorithm.update()
        roll_out(algorithm, env, T)
        buffer = algorithm.experience.buffer
        kept.append(buffer.num_kept)
    pool = buffer.rollout.obs.frames["camera"]
    tensors = [*buffer._tensors.values(), buffer._is_newest, buffer._keys, pool]
    held = sum(each.nbytes for each in tensors)
    planned = row.update.sizes.replay_buffer
    assert pool.dtype == env.dtype
    assert 0.95 * limit < planned <= limit
    assert planned == pytest.approx(held, rel=0.01)
    # A sequence begins with a frame and has one more whenever the camera takes one.
    per_sequence = 3.75 if env.period == 4 else T
    fitting = limit / (column_bytes() + per_sequence * frame_bytes(make)) - num_envs
    assert kept[-1] == pytest.approx(fitting, rel=0.1)
    shown = buffer.rollout.obs.steps["camera"][:, torch.cat((buffer.past, buffer.newest))]
    for rows in shown.unbind(1):
        assert len(rows.unique()) == len(pool[rows].unique(dim=0))
    assert row.storage == sum(
        each.nbytes
        for values in (vars(algorithm.storage).values(), algorithm.storage.observations.values())
        for each in values
        if isinstance(each, torch.Tensor)
    )


def test_bytes_are_a_quarter_and_fit_four_times_the_environments():
    most, storage = {}, {}
    for make in (make_bytes, make_floats):
        (row,) = plan(of_camera(make, buffer_gb=0.001), [16])
        most[make], storage[make] = row.update.sizes.most_envs, row.storage
    frames = T * 16 * frame_bytes(make_bytes)
    assert storage[make_floats] - storage[make_bytes] == 3 * frames
    for make, number in most.items():
        sequence = column_bytes() + T * frame_bytes(make)
        assert (number + 1) * sequence <= 1e6 < (number + 2) * sequence


def test_the_last_row_has_the_most_environments_that_the_replay_buffer_has_room_for(
    capsys, tmp_path
):
    what = of_camera(make_bytes, buffer_gb=0.001)
    rows = plan(what, [512, 4096, 64, 16])
    most = int(rows[0].update.sizes.most_envs)
    assert [row.num_envs for row in rows] == [16, 64, most]
    assert 64 < most < 512
    assert answer(rows, 24.0).startswith(f"24 GB: about {most} with num_micro_batches=1. The")
    with pytest.raises(ValueError, match=r"buffer_gb is 0\.001, expected at least"):
        plan(what, [most + 2])
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(what.agent))
    words = ["plan", "--env", what.task.task, "--agent", str(tmp_path / "agent.yaml")]
    assert main([*words, "--num-envs", "16", "512"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"More than {most} environments are refused: buffer_gb has no room")
    assert main([*words, "--num-envs", "16"]) == 0
    assert "refused" not in capsys.readouterr().out
