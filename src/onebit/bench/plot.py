"""The curve as a picture. Needs matplotlib, which the extra `plot` brings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from onebit.bench.results import Result
from onebit.bench.summary import Summary, provenance, summaries
from onebit.errors import BenchError, ConfigError

_FORMATS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Refuse before anything is measured: a file type that cannot be made, or no matplotlib."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: the name ends in {', '.join(_FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BenchError("--plot needs matplotlib", hint="pip install 'onebit[plot]'") from None


def plot(results: Sequence[Result], path: Path) -> None:
    """Total tok/s over requests, a line with its 95 % band for each setup. Raises BenchError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    by_setup: dict[str, list[Summary]] = {}
    for row in summaries(results):
        if row.total is not None and row.requests:
            by_setup.setdefault(row.setup, []).append(row)
    if not by_setup:
        raise BenchError(f"nothing to draw in {path}: no closed-loop run was measured")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for setup, rows in by_setup.items():
        at = [row.requests for row in rows]
        known = [row.total for row in rows if row.total is not None]
        (drawn,) = axes.plot(at, [total.median for total in known], marker="o", label=setup)
        band = [total.low for total in known], [total.high for total in known]
        axes.fill_between(at, *band, color=drawn.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="requests at once", ylabel="tokens a second, all users together")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({row.requests for rows in by_setup.values() for row in rows}))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    caption = provenance(results)[0]
    figure.supxlabel(caption if len(caption) < 150 else caption[:147] + "…", fontsize=6, color="gray")
    descriptor, temporary = -1, ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "wb") as stream:
            figure.savefig(stream, format=path.suffix[1:].lower(), dpi=150)
        Path(temporary).chmod(0o644)  # a picture is for showing; mkstemp makes it for its owner only
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()
        raise BenchError(f"cannot write {path}: {error.strerror}") from None
