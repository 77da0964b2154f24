"""The command of a platform that trains a policy, as a user would type it."""

from pathlib import Path

from rsl_tbptt.checkpoints.reading import NUMBERED
from rsl_tbptt.tools.platforms.isaaclab import placement
from scripts.pipeline.experiments import Experiment, Policy

CHECKPOINT = "{checkpoint}"
"""Placeholder in a policy's overrides for the checkpoint that it starts from."""
LOG_ROOT = Path("logs", "rsl_rl")
"""Where mjlab logs, below the working directory, if it is not told otherwise."""


def train_command(
    experiment: Experiment,
    policy: Policy,
    *,
    run_name: str,
    device: str,
    checkpoint: str | None = None,
    resumed: Path | None = None,
) -> list[str]:
    """Return the platform's own command that trains one policy.

    Args:
        experiment: Platform, task and number of environments.
        policy: Agent, iterations, seed and overrides, which may contain :data:`CHECKPOINT`.
        run_name: Suffix of the log folder.
        device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
        checkpoint: File of the policy to start from, or None to train from scratch.
        resumed: File of this policy's own training to continue from, or None to begin it.
    """
    overrides = [o.replace(CHECKPOINT, checkpoint or CHECKPOINT) for o in policy.overrides]
    loaded = resumed
    if resumed is None and checkpoint and overrides == policy.overrides:
        loaded = Path(checkpoint)
    write = {"isaaclab": _isaaclab, "mjlab": _mjlab, "envpool": _envpool}[experiment.platform]
    command = write(experiment, policy, run_name, device, loaded)
    return [*command, *policy.task_overrides, *overrides]


def iterations_left(policy: Policy, checkpoint: Path) -> int:
    """Return how many iterations follow a checkpoint; at least one, which writes a last file.

    rsl_rl saves ``model_k.pt`` after iteration k, so k + 1 iterations are done. A command counts
    the iterations that it adds, and rsl_rl gives the first of them the number k again::

        training of 10 iterations   0 1 2 3 4 5 x            killed, the newest file is model_4.pt
        its 5 other iterations              4 5 6 7 8        the last file is model_8.pt
    """
    match = NUMBERED.fullmatch(checkpoint.name)
    assert match is not None  # as found in a log folder
    return max(policy.iterations - 1 - int(match[1]), 1)


def _isaaclab(
    experiment: Experiment, policy: Policy, run_name: str, device: str, loaded: Path | None
) -> list[str]:
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", experiment.task]
    command += ["--agent", policy.agent]
    if loaded is not None:
        command += ["--checkpoint", str(loaded)]
    command += ["--num_envs", str(policy.num_envs or experiment.num_envs)]
    command += ["--max_iterations", str(policy.iterations)]
    command += ["--seed", str(policy.seed), "--run_name", run_name]
    return [*command, *placement(experiment.task, device)]


def _mjlab(
    experiment: Experiment, policy: Policy, run_name: str, device: str, loaded: Path | None
) -> list[str]:
    command = ["train", f"{experiment.task}-{policy.agent}"]
    command += ["--env.scene.num-envs", str(policy.num_envs or experiment.num_envs)]
    command += ["--agent.max-iterations", str(policy.iterations)]
    command += ["--agent.seed", str(policy.seed), "--agent.run-name", run_name]
    if loaded is not None:  # <log root>/<experiment>/<run>/<file>
        log_root = loaded.parent.parent.parent
        command += [] if log_root == LOG_ROOT else ["--log-root", str(log_root)]
        command += ["--agent.resume", "True", "--agent.load-run", loaded.parent.name]
        command += ["--agent.load-checkpoint", loaded.name]
    gpus = "None" if device == "cpu" else f"[{device.removeprefix('cuda:')}]"
    return [*command, "--gpu-ids", gpus]


def _envpool(
    experiment: Experiment, policy: Policy, run_name: str, device: str, loaded: Path | None
) -> list[str]:
    command = ["python", "-m", "rsl_tbptt_tasks.envpool", experiment.task, policy.agent]
    command += ["--num-envs", str(policy.num_envs or experiment.num_envs)]
    command += ["--iterations", str(policy.iterations), "--seed", str(policy.seed)]
    command += ["--run-name", run_name, "--device", device]
    return [*command, *(["--checkpoint", str(loaded)] if loaded is not None else [])]
