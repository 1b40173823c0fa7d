"""Kernels that run without a server: nothing here knows of one."""
