"""The commands of ``rsl-tbptt``: the signature of a function is the command line of its command.

Each function imports what it needs when it runs, so that nothing slow is imported before arguments
are parsed. ``cli.command_parser`` reads the signatures.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rsl_tbptt.files import output_path, write_json
from rsl_tbptt.tools.commands.doctor import check_device, diagnose
from rsl_tbptt.tools.platforms import PLATFORMS

NEWEST = "model_<iteration>.pt, or RUN/latest for the newest"
Agent = Annotated[
    Path | None,
    "config of the training (default: params/agent.yaml next to the checkpoint)",
    {"metavar": "YAML"},
]
Trust = Annotated[
    Sequence[str],
    "also load classes from this package; repeatable",
    {"action": "append", "metavar": "PACKAGE"},
]
Task = Annotated[
    str | None, "registered id of the task (default: the training's, on mjlab by experiment name)"
]
EvaluatedBundle = Annotated[
    Path | None, "evaluate this bundle of `rsl-tbptt export` instead", {"metavar": "BUNDLE"}
]
EvaluationFile = Annotated[
    Path | None,
    "JSON file to write (default: a new evaluation.json next to the checkpoint or in the bundle)",
]
MaxSteps = Annotated[
    int | None,
    "steps after which an unfinished episode counts as it stands (default: max_episode_length + 1)",
]
ExportFolder = Annotated[
    Path | None,
    "new folder, or an earlier export's (default: a new one, RUN/exported/model_<iteration>)",
]
PageFolder = Annotated[
    Path | None, "new folder, or an earlier page's (default: web, next to the first policy)"
]
Target = Annotated[
    str | None,
    "also write a folder for unitree_rl_lab and unitree_rl_mjlab",
    {"choices": ["unitree"]},
]
SingleInput = Annotated[bool, "let the ONNX file take one input, obs: all groups, joined"]
Overrides = Annotated[
    Sequence[str], "settings of the task: env.NAME=VALUE; for Isaac Lab also presets=NAME"
]
Device = Annotated[str, "cpu or cuda:<index>"]
Tolerance = Annotated[float, "largest difference that passes"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """Options of the commands that simulate a policy's task."""

    platform: Annotated[
        str | None,
        "platform that simulates the task (default: the training's)",
        {"choices": PLATFORMS},
    ] = None
    task: Task = None
    env: Annotated[
        str | None,
        "for rsl_rl alone: function (num_envs, seed, device) that returns a VecEnv",
        {"metavar": "MODULE:FUNCTION"},
    ] = None
    overrides: Overrides = ()
    device: Device = "cpu"

    def check(self) -> None:
        """Check that the options fit each other and the device can compute.

        Raises:
            ValueError: If not.
        """
        if self.env and (self.task or self.platform):
            raise ValueError("--env is given next to --platform or --task, expected one of both.")
        check_device(self.device)

    @property
    def platform_name(self) -> str | None:
        """The platform, ``rsl_rl`` for an environment of the user's own."""
        return "rsl_rl" if self.env else self.platform

    def run(self, checkpoint: Path, agent: Path | None, trust: Sequence[str]) -> Any:
        """Read a policy's run; errors come before a simulator starts or a folder is written to."""
        from rsl_tbptt.checkpoints.reading import checkpoint_file
        from rsl_tbptt.tools.run import read_run

        file = checkpoint_file(checkpoint)
        return read_run(file, self.platform_name, agent, trust, self.task)

    def options(self) -> dict[str, Any]:
        """Return the arguments of :func:`rsl_tbptt.tools.simulate.evaluate.started`."""
        task = self.env or self.task
        return {"task": task, "overrides": self.overrides, "device": self.device}


def doctor(*, device: Device = "cpu") -> int:
    """Check this setup, and say what is wrong."""
    return 0 if diagnose(device) else 1


def latest(folder: Annotated[Path, "log folder of a training", {"metavar": "RUN"}], /) -> None:
    """Print the newest checkpoint of a training that can be loaded."""
    from rsl_tbptt.checkpoints.reading import latest_checkpoint

    print(latest_checkpoint(folder))


def evaluate(
    *,
    checkpoint: Annotated[
        Path | None, "checkpoint (default with --policy: the one next to the bundle)"
    ] = None,
    policy: EvaluatedBundle = None,
    agent: Agent = None,
    trust: Trust = (),
    output: EvaluationFile = None,
    where: Where,
    episodes: Annotated[int, "number of episodes, one per environment"] = 256,
    max_steps: MaxSteps = None,
    seed: Annotated[int, "seed of the environments"] = 1000,
) -> None:
    """Evaluate a checkpoint on fresh episodes, without exploration noise.

    Raises:
        OSError: If the result cannot be written.
        ValueError: If options contradict each other.
    """
    from rsl_tbptt.tools.simulate import evaluate as evaluation

    if checkpoint is None and policy is None:
        raise ValueError("--checkpoint is missing, expected it or --policy.")
    where.check()
    run = exported = None
    if policy is not None:
        from rsl_tbptt.tools.robot import bundle as bundles  # only a bundle needs onnxruntime

        checkpoint = checkpoint or bundles.checkpoint_of(policy)
        if checkpoint is None:
            if agent is not None:
                raise ValueError(f"--agent is {agent}, expected it only next to --checkpoint.")
            run = bundles.LoneBundle(policy, where.platform_name)
        else:
            exported = partial(bundles.exported_policy, policy)
    if run is None:
        assert checkpoint is not None
        run = where.run(checkpoint, agent, trust)
    default = run.checkpoint.parent / "evaluation.json"
    output_path(output, default, evaluation.MARK)  # first: evaluating takes a while
    result = evaluation.evaluate(
        run,
        exported=exported,
        form="checkpoint" if policy is None else "onnx",
        episodes=episodes,
        max_steps=max_steps,
        seed=seed,
        **where.options(),
    )
    _print_evaluation(result)
    try:
        written = output_path(output, default, evaluation.MARK)  # something may have taken the name
        write_json(written, result)
    except (OSError, ValueError):  # computing it took a while
        print(f"The result, which cannot be written:\n{json.dumps(result)}")
        raise
    print(f"wrote {written}")


def _print_evaluation(result: Mapping[str, Any]) -> None:
    low, high = result["confidence_interval"]
    print(f"mean return {result['mean_return']:.3f}, 95 % confidence {low:.3f} to {high:.3f}")
    if "success_rate" in result:
        print(f"success rate {result['success_rate']:.3f}")
    for name, share in result.get("ended_by", {}).items():
        print(f"ended by {name}: {share:.1%} of episodes")


def compare(
    *,
    teacher: Annotated[Path, NEWEST],
    trust: Trust = (),
    output: Annotated[Path | None, "folder (default: compare/TASK next to the teacher)"] = None,
    resume: Annotated[bool, "go on with what is there, also with more seeds"] = False,
    where: Where,
    obs: Annotated[Sequence[str], "groups that students see (default: policy or actor)"] = (),
    minutes: Annotated[float, "time for all of it"] = 20.0,
    iterations: Annotated[int | None, "of each student, in place of --minutes"] = None,
    seeds: Annotated[int, "students of each kind"] = 3,
    seed: Annotated[int, "seed of the first ones"] = 1,
    num_envs: Annotated[int, "environments, and evaluated episodes"] = 256,
    history: Annotated[int, "steps that the second student sees"] = 5,
    gradient_length: Annotated[int, "steps of rollout and gradient"] = 24,
    bias: Annotated[bool, "train students that see what the teacher sees, too"] = False,
) -> None:
    """Compare students with and without memory, and say whether memory pays in this task."""
    from rsl_tbptt.tools.simulate import compare as comparing

    where.check()
    run = where.run(teacher, None, trust)
    task = where.env or where.task or run.trained_task()
    plan = comparing.Plan(
        task=task,
        overrides=where.overrides,
        obs=obs,
        num_envs=num_envs,
        history=history,
        gradient_length=gradient_length,
        bias=bias,
        seed=seed,
    )
    folder = output or run.checkpoint.parent / "compare" / task
    comparing.compare(
        run,
        folder,
        plan,
        seeds=seeds,
        minutes=minutes,
        iterations=iterations,
        resume=resume,
        device=where.device,
    )
    print(f"wrote {folder / comparing.FILE}")


def memory(
    checkpoint: Annotated[Path, NEWEST, {"metavar": "CHECKPOINT"}],
    /,
    *,
    agent: Agent = None,
    trust: Trust = (),
    where: Where,
    num_envs: Annotated[int, "number of environments"] = 64,
    steps: Annotated[int, "steps of the rollout, above the longest lag"] = 300,
) -> None:
    """Measure how far back a policy looks: how much each past observation moves its action."""
    from rsl_tbptt.tools.simulate.memory import analyse

    where.check()
    run = where.run(checkpoint, agent, trust)
    print(analyse(run, num_envs=num_envs, steps=steps, **where.options()))


def export(
    *,
    checkpoint: Annotated[Path, NEWEST],
    agent: Agent = None,
    trust: Trust = (),
    output: ExportFolder = None,
    single_input: SingleInput = False,
    target: Target = None,
    where: Where,
    steps: Annotated[int, "steps of the golden trajectory"] = 200,
    drawn: Annotated[bool, "draw the golden trajectory instead of simulating the task"] = False,
    tolerance: Tolerance = 1e-4,
    seed: Annotated[int, "seed of the golden trajectory"] = 0,
) -> None:
    """Export a checkpoint for robots as ONNX, and compare the files with it.

    Raises:
        ValueError: If they differ by more than the tolerance.
    """
    from rsl_tbptt.tools.robot.export import export as write_export

    where.check()
    bundle = write_export(
        where.run(checkpoint, agent, trust),
        output,
        single_input=single_input,
        steps=steps,
        tolerance=tolerance,
        seed=seed,
        drawn=drawn,
        unitree=target == "unitree",
        **where.options(),
    )
    print(f"golden trajectory: {bundle['golden']}")
    _print_differences(bundle["max_difference"])
    if bundle["output"] is None:
        raise ValueError(
            f"The largest difference is not within {tolerance:.1e}: nothing is written."
        )
    print(f"wrote {bundle['output']}")


def verify(
    bundle: Annotated[Path, "folder that `rsl-tbptt export` wrote", {"metavar": "BUNDLE"}],
    /,
    *,
    log: Annotated[
        Path | None,
        "compare what a robot's program logged instead, an .npz or .csv file",
        {"metavar": "LOG"},
    ] = None,
    tolerance: Tolerance = 1e-4,
) -> None:
    """Compare an exported policy, or a robot's log of it, with the trained policy.

    Raises:
        ValueError: If it is too far from the policy.
    """
    if log is not None:
        return _verify_log(bundle, log, tolerance)
    from rsl_tbptt.tools.robot.verify import verify as replay

    differences = replay(bundle)
    _print_differences(differences)
    if not all(difference <= tolerance for difference in differences.values()):
        raise ValueError(
            f"The largest difference is not within {tolerance:.1e}: the files are not of the"
            " policy that the golden trajectory was recorded with. Export it again."
        )


def _verify_log(bundle: Path, log: Path, tolerance: float) -> None:
    from rsl_tbptt.tools.robot.robot_log import compare_log

    found, notes = compare_log(bundle, log, tolerance)
    print("\n".join([*map(str, found), *(f"note: {note}" for note in notes)]))
    if wrong := [each.name for each in found if each.largest > tolerance]:
        raise ValueError(f"The log differs by more than {tolerance:.1e} in {', '.join(wrong)}.")


def _print_differences(differences: Mapping[str, float]) -> None:
    for name, difference in differences.items():
        what = "a prediction in ONNX" if name.startswith("auxiliary/") else "an action"
        print(f"{name}: largest difference of {what} {difference:.1e}")


def web(
    policies: Annotated[
        Sequence[str],
        "checkpoint, or folder that `export` wrote, with its title in the menu; all of one robot",
        {"metavar": "[TITLE=]POLICY"},
    ],
    /,
    *,
    output: PageFolder = None,
    trust: Trust = (),
    where: Where,
) -> None:
    """Write a page that simulates a robot of MuJoCo and its policies in the browser.

    Raises:
        ValueError: If two policies have the same title.
    """
    from rsl_tbptt.deploy import METADATA
    from rsl_tbptt.tools.robot.bundle import LoneBundle
    from rsl_tbptt.tools.robot.web import write_page

    where.check()
    read: dict[str, Any] = {}
    for word in policies:
        title, _, path = word.rpartition("=")
        file = Path(path)
        if (title := title or file.stem) in read:
            raise ValueError(f"Two policies have the title '{title}', expected TITLE=POLICY.")
        is_bundle, platform = (file / METADATA).is_file(), where.platform_name
        read[title] = LoneBundle(file, platform) if is_bundle else where.run(file, None, trust)
    folder = write_page(read, output, **where.options())
    print(f"wrote {folder}: look at it with `python -m http.server --directory {folder}`")


_IN_ORDER = (doctor, latest, evaluate, compare, memory, export, verify, web)
COMMANDS: dict[str, Callable[..., int | None]] = {each.__name__: each for each in _IN_ORDER}
"""Functions by command, in the order of the help."""
