"""What an accelerator would be asked to run: counted wherever the code runs."""

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rsl_tbptt.core.scan import graphs, triton

FREE = ("empty", "new_empty", "_unsafe_view")
"""Operations that launch nothing besides views, by the beginning of their names."""


class Launches(TorchDispatchMode):
    """Lists the operations of torch that launch work, and the Triton kernels, in order."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        launcher = triton._launcher

        def counting(cell, direction, *arguments):
            launch = launcher(cell, direction, *arguments)

            def count(step):
                self.seen.append(f"{cell.name.lower()}_{direction}")
                with _disable_current_modes():  # Triton's interpreter works with torch, too
                    launch(step)

            return count

        monkeypatch.setattr(triton, "_launcher", counting)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.name().removeprefix("aten::").split(".")[0]
        is_view = any(r.alias_info and not r.alias_info.is_write for r in operation._schema.returns)
        if not is_view and not name.startswith(FREE):
            self.seen.append(name)
        return operation(*args, **(kwargs or {}))


def run_step_by_step(monkeypatch):
    """Let the Triton engine record nothing: a replay would launch everything at once."""
    monkeypatch.setattr(graphs, "situation_of", lambda device: None)
