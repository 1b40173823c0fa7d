"""Kernels: arithmetic that knows nothing of serving. Each has a plain reference, a fast version, and tests of both."""
