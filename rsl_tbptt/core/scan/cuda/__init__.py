"""Engines of CUDA kernels: nothing in them waits for the device."""
