"""Few frames lie between ``update()`` and the scan; weights are prepared once per step."""

import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.cases import CASES
from support.operations_recording import OperationsRecording
from support.triton_on_cpu import triton_engine_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode

import rsl_tbptt
from rsl_tbptt.core.recording import Recorder
from rsl_tbptt.core.scan import cpu

PACKAGE = Path(rsl_tbptt.__file__).parent
MOST_FRAMES, MOST_FILES = 12, 8  # the last frame is the product's own


class StacksOfScans(TorchDispatchMode):
    """Records the package's frames, from ``update()``'s decorator on, at all products of scans."""

    def __init__(self):
        super().__init__()
        self.stacks = set()

    def __torch_dispatch__(self, operator, types, arguments=(), kwargs=None):
        name = operator.name()
        is_product = any(product in name for product in ("mm", "linear", "lstm", "rnn"))
        if is_product and "reorder" not in name:  # weights are packed once per window
            codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
            names = [code.co_name for code in codes]
            if "whole_update" in names and "recurrent_scan" in names:
                ours = codes[: names.index("whole_update") + 1]
                ours = [code for code in ours if Path(code.co_filename).is_relative_to(PACKAGE)]
                self.stacks.add(tuple((code.co_filename, code.co_name) for code in ours))
        return operator(*arguments, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("engine", ["reference", "compiled", "triton"])
@pytest.mark.parametrize("name", ["ppo-models-lstm", "distillation-student-lstm"])
def test_few_frames_are_between_an_update_and_a_product(name, engine, records):
    case = CASES[name]
    with triton_engine_on_cpu() if engine == "triton" else nullcontext():
        algorithm = case.build(scan_engine=engine)
        if records:
            algorithm.recorder = Recorder("cpu", capture=OperationsRecording)
        for seed in range(1 + records):
            case.fill(algorithm, seed)
            with StacksOfScans() as seen:
                algorithm.update()
    assert seen.stacks
    for stack in seen.stacks:
        assert len(stack) <= MOST_FRAMES, stack
        assert len({name for name, _ in stack}) <= MOST_FILES, stack


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")
@pytest.mark.parametrize("gradient_length", [2, 7])
@pytest.mark.parametrize("name", ["ppo-models-lstm", "distillation-student-lstm"])
def test_weights_are_prepared_once_per_optimiser_step_for_any_number_of_windows(
    name, gradient_length, monkeypatch
):
    made, step_product = [], cpu.step_product

    def counted(num_envs, *arguments, **options):
        made.append(num_envs)
        return step_product(num_envs, *arguments, **options)

    monkeypatch.setattr(cpu, "step_product", counted)
    case = CASES[name]
    algorithm = case.build(scan_engine="compiled", gradient_length=gradient_length)
    case.fill(algorithm, 0)
    made.clear()
    algorithm.update()
    # Four steps on half of six environments, of actor and critic; or one for each window of seven.
    expected = [3] * 2 * 4 if "ppo" in name else [6] * -(-7 // gradient_length)
    assert made == 2 * expected  # forward and backward
