"""Measuring: load generation, sweeps, statistics, results. Knows engines, not the router."""
