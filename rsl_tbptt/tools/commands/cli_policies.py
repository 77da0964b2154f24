"""The commands of ``rsl-tbptt`` that run a policy: evaluate, memory, export, verify and play."""

from __future__ import annotations

import json
from argparse import Namespace as Arguments
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.tools.commands.doctor import check_device, require
from rsl_tbptt.tools.platforms import platform_of


def run_evaluate(args: Arguments) -> int:
    """Evaluate a checkpoint, write a JSON file and print the mean return.

    Raises:
        ValueError: If options contradict each other.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.files import output_path
    from rsl_tbptt.tools.simulate.evaluate import MARK, evaluate

    where = where_of(args)
    if args.checkpoint is None and args.policy is None:
        raise ValueError("--checkpoint is missing, expected it or --policy.")
    if args.form != "onnx" and args.policy is None:
        raise ValueError(f"--form is {args.form}, expected it only next to --policy.")
    check_device(args.device)
    if args.checkpoint is None:
        from rsl_tbptt.tools.robot.bundle_policy import checkpoint_of

        args.checkpoint = checkpoint_of(args.policy)
    checkpoint = checkpoint_file(args.checkpoint)
    platform_of(checkpoint)  # which says where there is none, before its folder is written to
    default = checkpoint.parent / "evaluation.json"
    output_path(args.output, default, MARK)  # first: evaluating takes a while
    result = evaluate(
        checkpoint,
        bundle=args.policy,
        form=args.form,
        **where,
        **_given(args, "agent", "trust", "episodes", "max_steps", "seed"),
    )
    low, high = result["confidence_interval"]
    print(f"mean return {result['mean_return']:.3f}, 95 % confidence {low:.3f} to {high:.3f}")
    if "success_rate" in result:
        print(f"success rate {result['success_rate']:.3f}")
    for name, share in result.get("ended_by", {}).items():
        print(f"ended by {name}: {share:.1%} of episodes")
    for name, error in result["auxiliary"].items():
        print(f"auxiliary head {name}: root mean square error {error['rmse']:.4f}")
    print(f"wrote {_write_or_print(result, args.output, default, MARK)}")
    return 0


def _write_or_print(result: Any, given: Path | None, default: Path, mark: bytes) -> Path:
    """Write a result, or print it if it cannot be written: computing it took a while.

    Raises:
        OSError: If it cannot be written.
        ValueError: Likewise.
    """
    from rsl_tbptt.files import output_path, write_json

    try:
        output = output_path(given, default, mark)  # another result may have taken the name
        write_json(output, result)
    except (OSError, ValueError):
        print(f"The result, which cannot be written:\n{json.dumps(result)}")
        raise
    return output


def run_memory(args: Arguments) -> int:
    """Measure what a policy's memory holds, write a JSON file and print what it means.

    Raises:
        ValueError: If options contradict each other.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.files import output_path
    from rsl_tbptt.tools.simulate import memory_findings as findings
    from rsl_tbptt.tools.simulate.memory import analyse

    where = where_of(args)
    check_device(args.device)
    checkpoint = checkpoint_file(args.checkpoint)
    platform_of(checkpoint)  # which says where there is none, before its folder is written to
    default = checkpoint.parent / findings.FILE
    output = output_path(args.output or default, default, findings.MARK)
    found = analyse(checkpoint, **where, **_given(args, "agent", "trust", "num_envs", "steps"))
    for name, back, outlier, frozen in findings.memory_rows(found):
        print(f"{name}: looks back {back}; recovers from an outlier after {outlier},", end=" ")
        print(f"from a frozen sensor after {frozen}")
    for name, value in findings.memory_facts(found).items():
        print(f"{name}: {value}")
    looked_at, wrong = findings.judge_memory(found)
    print("\n".join([looked_at, *(f"WRONG {finding}" for finding in wrong)]))
    print(f"wrote {_write_or_print(found, output, default, findings.MARK)}")
    return 0


def run_export(args: Arguments) -> int:
    """Write a checkpoint's bundle, and print how far its files are from the policy.

    Raises:
        ValueError: If it is too far.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.tools.robot.export import export

    check_device(args.device)
    bundle = export(
        checkpoint_file(args.checkpoint),
        args.output,
        images=dict(args.image),
        **where_of(args),
        **_given(args, "agent", "trust", "single_input", "steps", "tolerance", "seed", "drawn"),
        target=args.target,
    )
    print(f"golden trajectory: {bundle['golden']}")
    _print_differences(bundle["max_difference"])
    if "torchscript" not in bundle["max_difference"]:
        print("torchscript: not there, newer releases of torch have given it up")
    if bundle["output"] is None:
        raise ValueError(
            f"The largest difference is not within {args.tolerance:.1e}: nothing is written."
        )
    print(f"wrote {bundle['output']}")
    return 0


def run_verify(args: Arguments) -> int:
    """Replay a bundle's golden trajectory, or a robot's log, and print what differs.

    Raises:
        ValueError: If it is too far from the policy, or the log shows a fault.
    """
    if args.log is not None:
        return _verify_log(args.bundle, args.log, args.tolerance)
    from rsl_tbptt.tools.robot.verify import code_in, is_trusted, verify

    differences = verify(args.bundle, args.trust)
    _print_differences(differences)
    if (code := code_in(args.bundle)) and not is_trusted(args.bundle, args.trust):
        print(f"not run: {', '.join(code)}. They are code: to run it, add --trust {args.bundle}")
    if not all(difference <= args.tolerance for difference in differences.values()):
        raise ValueError(
            f"The largest difference is not within {args.tolerance:.1e}: the files are not of the"
            " policy that the golden trajectory was recorded with. Export it again."
        )
    return 0


def _verify_log(bundle: Path, log: Path, tolerance: float) -> int:
    from rsl_tbptt.tools.robot.robot_log import diagnose_log

    found = diagnose_log(bundle, log, tolerance)
    for name, difference in found.differences.items():
        print(f"{name}: largest difference {difference:.1e}{', faults apart' * bool(found.faults)}")
    for note in found.notes:
        print(f"note: {note}")
    for fault in found.faults:
        print(f"FAULT {fault.kind}: {fault.text}")
    if found.faults:
        raise ValueError(f"The log shows {len(found.faults)} fault(s) of the program on the robot.")
    print("no fault")
    return 0


def _print_differences(differences: Mapping[str, float]) -> None:
    for name, difference in differences.items():
        what = "a prediction in ONNX" if name.startswith("auxiliary/") else "an action"
        print(f"{name}: largest difference of {what} {difference:.1e}")


def run_play(args: Arguments) -> int:
    """Play a checkpoint, or write a video of some.

    Raises:
        ValueError: If an option is given that only the other one takes.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.tools.simulate.play import play, record

    checkpoints, video = [checkpoint_file(path) for path in args.checkpoint], args.video
    if args.num_envs is not None and args.num_envs < 1:
        raise ValueError(f"--num-envs is {args.num_envs}, expected at least 1.")
    if video is None:
        if len(checkpoints) > 1 or args.trust:
            raise ValueError(
                "--video is missing, expected it next to --trust or several --checkpoint: the"
                " platform's own play shows one policy and loads the classes of its task."
            )
        options = _given(args, "task", "device", "further")
        return play(checkpoints[0], num_envs=args.num_envs or 16, **options)
    require("play --video")
    if refused := [word for word in args.further if word.startswith("-")]:
        raise ValueError(
            f"The arguments {refused} are unknown, expected with --video only settings of the"
            " task: env.episode_length_s=4."
        )
    check_device(args.device)
    options = _given(args, "task", "trust", "device")
    record(checkpoints, video, overrides=args.further, num_envs=args.num_envs or 2, **options)
    print(f"wrote {video}, {video.stat().st_size / 1e6:.2f} MB")
    return 0


def where_of(args: Arguments) -> dict[str, Any]:
    """Return where a policy is simulated.

    Raises:
        ValueError: If options contradict each other.
    """
    if args.env and (args.task or args.platform):
        raise ValueError("--env is given next to --platform or --task, expected one of both.")
    return {
        "platform_name": "rsl_rl" if args.env else args.platform,
        "task": args.env or args.task,
        **_given(args, "overrides", "device"),
    }


def _given(args: Arguments, *names: str) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names}
