from collections.abc import Sequence

from numpy import bool_, int64, uint32
from numpy.typing import NDArray

from onebit.kernels.embed.twin import Ends, Floats, Ids, PieceArrays, Rows

class Tokenizer:
    def __init__(
        self,
        units: NDArray[uint32],
        runs: NDArray[uint32],
        first: PieceArrays,
        later: PieceArrays,
        added: Sequence[tuple[str, int]],
        unknown: int,
        longest_word: int,
    ) -> None: ...
    def tokenize(self, texts: Sequence[str | bytes], /) -> tuple[bytes, bytes]: ...
    def embed(self, texts: Sequence[str | bytes], rows: Rows, scales: Floats, out: Floats, /) -> None: ...

def pool(ids: Ids, ends: Ends, rows: Rows, scales: Floats, out: Floats, /) -> None: ...
def search(
    rows: Rows,
    scales: Floats,
    query: Rows,
    allow: NDArray[bool_] | None,
    out_rows: NDArray[int64],
    out_scores: Floats,
    /,
) -> int: ...
def instruction_sets() -> list[str]: ...
def use(name: str, /) -> None: ...
