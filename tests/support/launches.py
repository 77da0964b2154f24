"""What an accelerator would be asked to run: counted wherever the code runs."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rsl_tbptt.core.scan import triton

FREE = ("empty", "new_empty", "_unsafe_view")
"""Operations that launch nothing besides views, by the beginning of their names."""


class Launches(TorchDispatchMode):
    """Lists the operations of torch that launch work, and the Triton kernels, in order."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        kernel_of = triton._kernel

        def counting(cell, name, num_units):
            launch = kernel_of(cell, name, num_units)

            def count(*arguments):
                self.seen.append(f"{cell.name.lower()}_{name}")
                with _disable_current_modes():  # Triton's interpreter works with torch, too
                    launch(*arguments)

            return count

        monkeypatch.setattr(triton, "_kernel", counting)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.name().removeprefix("aten::").split(".")[0]
        is_view = any(r.alias_info and not r.alias_info.is_write for r in operation._schema.returns)
        result = operation(*args, **(kwargs or {}))
        is_empty = isinstance(result, torch.Tensor) and result.numel() == 0
        if not is_view and not is_empty and not name.startswith(FREE):
            self.seen.append(name)
        return result
