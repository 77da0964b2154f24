"""Settings shared by all tests."""

import torch
from hypothesis import settings

torch.set_num_threads(1)  # small tensors: threads cost more than they bring

settings.register_profile("default", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("default")
