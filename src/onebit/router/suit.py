"""Which adapter suits a message: the one whose description is nearest to it, if it is near enough. No model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Cosine from which on a description counts as meant. Over 68 descriptions and 204 requests (benchmarks/
# embed_adapters.py), with the right one among 8: 50 % right, 1 % wrong, the rest none; without it none for 97 %
# (among 24: 49, 3 and 92 %; among 67: 48, 7 and 81 %). Lower, a wrong adapter would be more likely than a right one
# that was missed: at 0.25 among 67, none was 45 %.
THRESHOLD = 0.35


@dataclass(frozen=True, slots=True)
class Score:
    """How near an adapter's description is: a cosine, -1 to 1."""

    adapter: int
    cosine: float


class Suits:
    """Descriptions, embedded once (0.7 µs each); a message is then compared with all of them.

    Making the first one takes 40 ms (and 8 MB), for it loads the package's embedding table.
    """

    def __init__(self, descriptions: Sequence[str]) -> None:
        from onebit.kernels.embed import Nearest, default_embedder

        self._nearest = Nearest(default_embedder(), descriptions)

    def __call__(self, text: str) -> int | None:
        """The number of the description that suits `text`; None: none does."""
        best = self._nearest.find(text)
        return best[0].row if best and best[0].score >= THRESHOLD else None

    def scores(self, text: str, most: int) -> list[Score]:
        """The nearest, best first; none for a text without words."""
        return [Score(hit.row, hit.score) for hit in self._nearest.find(text, most)]
