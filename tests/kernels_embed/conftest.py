"""Every kernel that there is here: the twin, and the compiled one with each instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onebit.kernels.embed import Embedder, Table, twin
from onebit.kernels.embed.kernel import Kernel
from onebit.kernels.embed.table import default_folder, load_table

try:
    from onebit.kernels.embed import compiled

    SETS = compiled.instruction_sets()
except ImportError:  # installed without a C compiler; test_build.py says so
    SETS = []


@pytest.fixture(scope="module", params=["twin", *SETS])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """One kernel after the other."""
    if request.param == "twin":
        yield twin
        return
    compiled.use(request.param)
    yield compiled
    compiled.use(SETS[0])


@pytest.fixture(scope="session")
def table() -> Table:
    """The package's own table."""
    return load_table(default_folder())


@pytest.fixture(scope="session")
def embedder(table: Table) -> Embedder:
    """With the package's own table and the best kernel."""
    return Embedder(table)
