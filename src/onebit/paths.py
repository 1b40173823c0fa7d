"""Where onebit keeps things: the XDG folders, asked anew each time so that tests and users can move them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

_APP = "onebit"


def cache_dir() -> Path:
    """Builds, sources and models that can be made again: `$XDG_CACHE_HOME/onebit`."""
    return platformdirs.user_cache_path(_APP)


def config_dir() -> Path:
    """What the user has set (`engines add`): `$XDG_CONFIG_HOME/onebit`."""
    return platformdirs.user_config_path(_APP)


def log_dir() -> Path:
    """Engine and build logs: `$XDG_STATE_HOME/onebit/log` on Linux."""
    return platformdirs.user_log_path(_APP)


def models_dir() -> Path:
    """Pulled models."""
    return cache_dir() / "models"


def builds_dir() -> Path:
    """What `onebit engines build` made: one folder per llama.cpp version and device."""
    return cache_dir() / "builds"


def sources_dir() -> Path:
    """Unpacked llama.cpp sources, one folder per version."""
    return cache_dir() / "source"


def memory_file() -> Path:
    """How many bytes engines were seen to hold."""
    return cache_dir() / "memory.json"


def profiles_dir() -> Path:
    """What `onebit bench profile` measured: one file per pair of engines."""
    return cache_dir() / "profiles"


def run_root() -> Path:
    """The folder that holds one 0700 run folder per server process.

    `$XDG_RUNTIME_DIR/onebit`, else a folder of this user's own in the temporary directory: Unix socket paths
    end at 107 bytes, so a deep cache path will not do.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / _APP
    return Path(tempfile.gettempdir()) / f"{_APP}-{os.getuid()}"
