"""Few frames in few files lie between ``update()`` and a matrix product of the scan."""

import traceback
from pathlib import Path

import pytest
from support.helpers import make_distillation, make_ppo, roll_out
from torch.utils._python_dispatch import TorchDispatchMode

import rsl_tbptt
from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

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
