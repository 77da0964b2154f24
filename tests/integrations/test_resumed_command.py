"""``rsl-tbptt resume``: the command that it prints continues a killed training of a simulator."""

import importlib.util
import shlex

import pytest
import torch
import yaml
from support.killed_training import in_shell, kill_once_there, tool, words_of

from rsl_tbptt.files import read_config

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]  # starts a simulator twice

TRAIN = {
    "isaaclab": """isaaclab train --rl_library rsl_rl --task Tbptt-Cartpole-Occluded
        --agent rsl_rl_recurrent_cfg_entry_point --num_envs 32 --seed 3 --max_iterations 1000
        physics=newton_mjwarp --device cpu agent.device=cpu""",
    "mjlab": """train Tbptt-Cartpole-Occluded-Recurrent --gpu-ids None --env.scene.num-envs 8
        --agent.max-iterations 1000 --agent.seed 3""",
}
CHANGED = {
    "isaaclab": """agent.save_interval=2 agent.algorithm.gradient_length=8 env.episode_length_s=5.5
        agent.actor.distribution_cfg.std_range=[1e-05,100.0] agent.algorithm.schedule=fixed""",
    "mjlab": """--agent.save-interval 2 --agent.algorithm.gradient-length 8
        --agent.actor.hidden-dims '(32,)' --env.episode-length-s 5.5""",
}
"""Changed settings, which the printed command repeats."""
ITERATIONS = {"isaaclab": "--max_iterations", "mjlab": "--agent.max-iterations"}
OWN = ("max_iterations", "run_name", "resume", "load_run", "load_checkpoint", "log_dir")
"""Settings that a resumed run has of its own."""


@pytest.mark.parametrize("platform", TRAIN)
def test_the_printed_command_continues_a_killed_training(platform, tmp_path):
    if not importlib.util.find_spec(platform):
        pytest.skip(f"needs {platform}")
    changed = shlex.split(CHANGED[platform])
    run = kill_once_there([*shlex.split(TRAIN[platform]), *changed], tmp_path, "model_2.pt")
    agent = run / "params" / "agent.yaml"  # nobody waits for 1,000 iterations
    agent.write_text(agent.read_text().replace("max_iterations: 1000", "max_iterations: 5"))
    shown = tool("resume", run, folder=run)
    (line,) = shown.stdout.splitlines()
    assert "Passed over a checkpoint" in shown.stderr
    told = "2 iterations follow the newest checkpoint, model_2.pt"
    assert told in shown.stderr, shown.stderr
    words = words_of(line)
    assert words[words.index(ITERATIONS[platform]) + 1] == "2"
    assert {*changed} <= {*words}

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
    counters = [file["rsl_tbptt"]["env_state"]["common_step_counter"] for file in (before, after)]
    assert counters[1] == counters[0] * 5 / 3 > 0
    for name in ("agent.yaml", "env.yaml"):
        old, new = (
            read_config(folder / "params" / name, other=yaml.serialize) for folder in (run, resumed)
        )
        assert {k: v for k, v in old.items() if k not in OWN} == {
            k: v for k, v in new.items() if k not in OWN
        }
