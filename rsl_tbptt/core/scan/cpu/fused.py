"""Hand-written forward and backward passes over the whole window, of torch's operations alone.

Per layer there is one product per step forward and one backward, and the weight gradients are one
product over the window. Episode starts are lists of environments, read once per layer, which costs
nothing on a CPU and makes the host wait on a GPU. There is no padding, and the cost does not depend
on the done rate.
"""

from rsl_tbptt.core.scan.cpu import gru, lstm
from rsl_tbptt.core.scan.layers import LayerScan

LAYERS: dict[str, LayerScan] = {"lstm": lstm.scan_layer, "gru": gru.scan_layer}
"""Scans of one layer, by the name of its cell."""
