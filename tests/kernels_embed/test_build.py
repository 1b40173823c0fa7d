"""The build: compiled kernels are there, and where they are not, the twin steps in and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onebit.kernels.embed import compiled


def test_the_best_instruction_set_comes_first_and_the_portable_one_last() -> None:
    assert compiled.instruction_sets()[-1] == "portable"


def test_without_the_extension_the_twin_steps_in_and_says_so_once() -> None:
    code = """if True:
        import sys, warnings
        sys.modules["onebit.kernels.embed._native"] = None  # as if it had not been built
        from onebit.kernels.embed import default_embedder
        from onebit.kernels.embed.kernel import best_kernel
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            default_embedder().encode(["one"])
            default_embedder().encode(["two"])
        print(best_kernel().__name__, len(said), said[0].message)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("onebit.kernels.embed.twin 1 the compiled embedding kernels are missing")
    assert "Install a C compiler" in done.stdout


def test_the_server_can_use_the_kernels_while_others_run(capfd: pytest.CaptureFixture[str]) -> None:
    """A long text is embedded without the GIL: another thread goes on meanwhile."""
    import threading

    from onebit.kernels.embed import default_embedder

    embedder = default_embedder()
    text = "a long text " * 2_000_000
    started, steps = threading.Event(), 0

    def work() -> None:
        started.set()
        embedder.encode([text])

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    while thread.is_alive():
        steps += 1
    assert steps > 1000  # with the GIL held it would be a handful
