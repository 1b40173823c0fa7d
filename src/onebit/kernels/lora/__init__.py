"""Merging LoRA adapters into weights: many at once, in one pass, with the bits of the plain loop."""
