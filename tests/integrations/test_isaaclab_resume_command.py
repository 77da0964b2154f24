"""``rsl-tbptt resume``: the command that it prints continues a killed training of Isaac Lab."""

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
import yaml
from support.killed_training import in_shell, kill_once_there, tool, words_of

from rsl_tbptt.files import read_config

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]  # starts the simulator three times

CHANGED = [
    *("agent.save_interval=2", "agent.algorithm.gradient_length=8", "env.episode_length_s=5.5"),
    *(
        "agent.actor.distribution_cfg.std_range=[1e-05,100.0]",
        "agent.algorithm.schedule=fixed",
    ),
]
TRAIN = [
    *("isaaclab", "train", "--rl_library", "rsl_rl", "--task", "Tbptt-Cartpole-Occluded"),
    *("--agent", "rsl_rl_recurrent_cfg_entry_point", "--num_envs", "32", "--seed", "3"),
    *("--max_iterations", "1000", "physics=newton_mjwarp", "--device", "cpu", "agent.device=cpu"),
    *CHANGED,
]


def test_the_printed_command_continues_a_killed_training(tmp_path):
    run = kill_once_there(TRAIN, tmp_path, "model_2.pt")
    agent = run / "params" / "agent.yaml"  # nobody waits for 1,000 iterations
    agent.write_text(agent.read_text().replace("max_iterations: 1000", "max_iterations: 5"))
    shown = tool("resume", run, folder=run)
    (line,) = shown.stdout.splitlines()
    assert "Passed over a checkpoint" in shown.stderr
    told = "2 iterations follow the newest checkpoint, model_2.pt"
    assert told in shown.stderr, shown.stderr
    words = words_of(line)
    assert words[words.index("--max_iterations") + 1] == "2"
    assert {*CHANGED} <= {*words}

    in_shell(line, run)
    (resumed,) = tmp_path.glob("logs/rsl_rl/*/*_resumed")
    assert {path.name for path in resumed.glob("model_*")} == {"model_2.pt", "model_3.pt"}
    before, after = (
        torch.load(path, weights_only=True) for path in (run / "model_2.pt", resumed / "model_3.pt")
    )
    steps = [
        next(iter(file["optimizer_state_dict"]["state"].values()))["step"]
        for file in (before, after)
    ]
    assert steps[1] == steps[0] * 5 / 3  # updates: 3 and then 5
    configs = [
        read_config(folder / "params" / name, other=yaml.serialize)
        for folder in (run, resumed)
        for name in ("agent.yaml", "env.yaml")
    ]
    own = {"max_iterations": 0, "run_name": "", "load_checkpoint": ""}
    assert configs[0] | own == configs[2] | own
    assert configs[1] | {"log_dir": ""} == configs[3] | {"log_dir": ""}
