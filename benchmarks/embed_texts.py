"""Natural English that every machine has: sentences from the docstrings of Python's own standard library."""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from pathlib import Path


def stdlib_texts(count: int, length: int = 50) -> list[str]:
    """`count` different pieces of docstrings, of `length` bytes or a word more each."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or "tests" in path.parts:
            continue
        for text in _docstrings(path):
            found.update(dict.fromkeys(_pieces(text, length)))
            if len(found) >= count:
                return list(found)[:count]
    raise SystemExit(f"the standard library has only {len(found):,} such pieces, {count:,} were asked for")


def _docstrings(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old modules
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


def _pieces(text: str, length: int) -> list[str]:
    pieces, piece = [], ""
    for word in re.findall(r"\S+", text):
        piece = f"{piece} {word}" if piece else word
        if len(piece.encode()) >= length - 3:  # ends within a word of it: 50 bytes on average
            pieces.append(piece)
            piece = ""
    return pieces
