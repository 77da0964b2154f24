"""A recording without a GPU: the operations of a step, recorded once and repeated on its tensors.

Like a CUDA graph, it knows the addresses and the Python numbers of the recording. Unlike a capture
of one, recording also runs the operations. Switch ``torch.backends.mkldnn`` off: its LSTM keeps
state of its own between operations.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("_local_scalar_dense", "equal", "masked_select", "nonzero", "_unique2", "unique_dim")
"""Operations that a capture refuses, because the host waits for their result."""


class OperationsRecording(TorchDispatchMode):
    """Records the operations below autograd that run inside this context.

    Example::

        Recorder("cpu", capture=OperationsRecording)
    """

    def __init__(self):
        """Start with no operation."""
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Run and keep an operation.

        Raises:
            AssertionError: If a capture would refuse it.
        """
        name = operation.overloadpacket.__name__
        masks = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        reads = name in READS or masks
        assert not reads, f"'{name}' waits for a tensor on the host, which no capture can"
        results = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, results))
        return results

    @torch.no_grad()
    def replay(self):
        """Repeat the operations into the results of the recording."""
        for operation, args, kwargs, results in self.operations:
            repeated = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(repeated), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
