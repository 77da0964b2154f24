"""``rsl-tbptt doctor RUN`` prints medians, and finds what is broken in a log folder."""

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt.tools.commands.cli import main


def log(folder, **metrics):
    """Write metrics as rsl_rl does; return the folder."""
    writer = SummaryWriter(str(folder))
    for name, values in metrics.items():
        for iteration, value in enumerate(values):
            writer.add_scalar(f"Loss/{name}", value, iteration)
    writer.close()
    return folder


def findings(run, capsys):
    """Return the problems that the command prints for a run."""
    status = main(["doctor", str(run)])
    shown = capsys.readouterr().out
    wrong = [line[7:] for line in shown.splitlines() if line.startswith("WRONG  ")]
    assert status == (1 if wrong else 0)
    assert ("no problems found" in shown) is (not wrong)
    return wrong


NAN, INF = float("nan"), float("inf")
CASES = {
    "healthy at the end": ({"kl": [1.0] * 60 + [0.01] * 40}, []),
    "broken at the end": ({"kl": [0.01] * 60 + [1.0] * 40}, ["Loss/kl is 1, expected at most 0.1"]),
    "too few updates": ({"kl": [1.0] * 9}, []),
    "NaN": ({"surrogate": [0.1, NAN], "value": [NAN, 0.1]}, ["Loss/surrogate is nan, expected a"]),
    "inf": ({"surrogate": [0.1, INF]}, ["Loss/surrogate is inf, expected a finite number"]),
    "skipped": ({"skipped_updates": [0.0, 3.0]}, ["Loss/skipped_updates is 3, expected 0"]),
    "held out": (
        {"explained_variance/student": [0.9] * 120, "held_out/explained_variance": [0.0] * 120},
        ["Loss/held_out/explained_variance is 0"],
    ),
}


@pytest.mark.parametrize(("metrics", "expected"), CASES.values(), ids=CASES)
def test_what_is_broken_in_the_last_quarter_is_named(tmp_path, capsys, metrics, expected):
    found = findings(log(tmp_path, **metrics), capsys)
    assert len(found) == len(expected)
    assert all(one.startswith(start) for one, start in zip(found, expected, strict=True))


def test_medians_of_the_last_quarter_are_printed(tmp_path, capsys):
    assert main(["doctor", str(log(tmp_path, value=[9.0] * 60 + [0.25] * 20))]) == 0
    assert "Loss/value" in (line := capsys.readouterr().out.splitlines()[0])
    assert line.endswith("median       0.25")


class Evil:
    """Runs code if a checkpoint is unpickled without checks."""

    def __reduce__(self):
        return (print, ("code of the checkpoint ran",))


def test_the_newest_checkpoint_is_looked_at_and_runs_no_code(tmp_path, capsys):
    weight = {"mlp.0.weight": torch.ones(2)}
    torch.save({"actor_state_dict": weight, "iter": 9}, tmp_path / "model_9.pt")
    assert findings(tmp_path, capsys) == []
    weight["mlp.0.weight"][1] = torch.nan
    torch.save({"actor_state_dict": weight, "iter": 10}, tmp_path / "model_10.pt")
    (found,) = findings(tmp_path, capsys)
    assert found.startswith("actor_state_dict.mlp.0.weight hold NaN or inf in model_10.pt")
    (tmp_path / "model_11.pt").write_bytes(b"half of it")
    (found,) = findings(tmp_path, capsys)
    assert "model_11.pt' cannot be read" in found
    torch.save({"actor_state_dict": Evil()}, tmp_path / "model_12.pt")
    (found,) = findings(tmp_path, capsys)
    assert "expected tensors and plain values" in found
    assert "code of the checkpoint ran" not in found


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main(["doctor", str(tmp_path / name)]) == 1
    assert "expected the log folder of a training" in capsys.readouterr().err
