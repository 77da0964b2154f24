"""``rsl-tbptt resume``: the command that it prints continues a killed training of mjlab."""

import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import torch
import yaml
from support.killed_training import in_shell, kill_once_there, tool, words_of

from rsl_tbptt.files import read_config

CHANGED = {
    "--agent.save-interval": "2",
    "--agent.algorithm.gradient-length": "8",
    "--agent.actor.hidden-dims": "(32,)",
    "--env.episode-length-s": "5.5",
}
TRAIN = [
    *("train", "Tbptt-Cartpole-Occluded-Recurrent", "--gpu-ids", "None"),
    *("--env.scene.num-envs", "8", "--agent.max-iterations", "1000", "--agent.seed", "3"),
    *(word for option in CHANGED.items() for word in option),
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
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options.items() >= {**CHANGED, "--agent.max-iterations": "2"}.items()

    in_shell(line, run)
    (resumed,) = tmp_path.glob("logs/rsl_rl/*/*_resumed")
    assert {path.name for path in resumed.glob("model_*")} == {"model_2.pt", "model_3.pt"}
    before, after = (
        torch.load(path, weights_only=True) for path in (run / "model_2.pt", resumed / "model_3.pt")
    )
    counters = [file["infos"]["env_state"]["common_step_counter"] for file in (before, after)]
    assert counters[1] == counters[0] * 5 / 3  # updates: 3 and then 5
    configs = [
        read_config(folder / "params" / name, other=yaml.serialize)
        for folder in (run, resumed)
        for name in ("agent.yaml", "env.yaml")
    ]
    own = {
        "max_iterations": 0,
        "run_name": "",
        "resume": True,
        "load_run": "",
        "load_checkpoint": "",
    }
    assert configs[0] | own == configs[2] | own
    assert configs[1] == configs[3]
