"""onebit: share one GPU among many users."""

__version__ = "0.1.0"
