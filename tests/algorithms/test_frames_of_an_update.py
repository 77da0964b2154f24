"""Few frames in few files lie between ``update()`` and a matrix product of the scan."""

import traceback
from pathlib import Path

import pytest
from support.helpers import make_distillation, make_ppo, roll_out
from support.launches import kernels_without_work
from torch.utils._python_dispatch import TorchDispatchMode

import rsl_tbptt
from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.recording import Recorder

PACKAGE = Path(rsl_tbptt.__file__).parent
MOST_FRAMES, MOST_FILES = 12, 8  # the last frame is the product's own


class StacksOfScans(TorchDispatchMode):
    """Records the package's frames, from ``update()`` on, at every product inside a scan."""

    def __init__(self):
        super().__init__()
        self.stacks = set()

    def __torch_dispatch__(self, operator, types, arguments=(), kwargs=None):
        name = operator.name()
        is_product = any(product in name for product in ("mm", "linear", "lstm", "rnn"))
        if is_product and "reorder" not in name:  # weights are packed once per window
            codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
            names = [code.co_name for code in codes]
            if "update" in names and "recurrent_scan" in names:
                ours = codes[: names.index("update") + 1]
                ours = [code for code in ours if Path(code.co_filename).is_relative_to(PACKAGE)]
                self.stacks.add(tuple((code.co_filename, code.co_name) for code in ours))
        return operator(*arguments, **(kwargs or {}))


class StacksOfRecordings(StacksOfScans):
    """The same inside of recordings, which are not replayed here."""

    all_stacks: set = set()  # noqa: RUF012

    def __exit__(self, *error):
        super().__exit__(*error)
        self.all_stacks |= self.stacks

    def replay(self):
        """Do nothing: the results of the recording are as good."""


MAKES = {
    "ppo": (make_ppo, roll_out, TbpttPPO),
    "distillation": (make_distillation, roll_out, TbpttDistillation),
}


def assert_few_frames(stacks):
    assert stacks
    for stack in stacks:
        assert len(stack) <= MOST_FRAMES, stack
        assert len({name for name, _ in stack}) <= MOST_FILES, stack


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")
@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize("kind", MAKES)
def test_few_frames_are_between_a_window_and_the_scan(kind, engine):
    make, fill, algorithm_class = MAKES[kind]
    algorithm = make(algorithm_class, 6, 4, gradient_length=3, scan_engine=engine)
    fill(algorithm, 0)
    with StacksOfScans() as seen:
        algorithm.update()
    assert_few_frames(seen.stacks)


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")
@pytest.mark.parametrize("kind", MAKES)
def test_few_frames_are_between_a_recorded_step_and_the_scan(kind):
    """The engine of GPUs, with kernels that compute nothing, while steps are recorded."""
    make, fill, algorithm_class = MAKES[kind]
    shared = {"gradient_length": 3, "num_learning_epochs": 4, "scan_engine": "triton"}
    with kernels_without_work():
        algorithm = make(algorithm_class, 6, 4, **shared)
        algorithm.recorder = Recorder("cpu", capture=StacksOfRecordings)
        stacks = set()
        for seed in range(3):
            fill(algorithm, seed)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(StacksOfRecordings, "all_stacks", stacks)
                algorithm.update()
    assert_few_frames(stacks)
