"""Flags, environment and YAML become one frozen configuration."""
