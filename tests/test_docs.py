"""The documentation is complete and current: pages made from code, the example config, links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from click import Command

from onebit import __version__
from onebit.config.load import load
from onebit.config.schema import FILE_ONLY, ServeConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["settings.md", "cli.md"])
def test_pages_made_from_the_code_are_current(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == _reference().PAGES[page](), "run `make docs`"


def test_every_command_is_in_the_reference() -> None:
    from onebit.cli import app

    def walk(command: Command, path: tuple[str, ...]) -> set[tuple[str, ...]]:
        found = {path}
        for name, child in getattr(command, "commands", {}).items():
            found |= walk(child, (*path, name))
        return found

    assert walk(typer.main.get_command(app), ()) == set(_reference().COMMANDS)  # type: ignore[arg-type]


def test_every_setting_is_a_flag_a_variable_and_a_key() -> None:
    from onebit.cli import app

    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {p.name: p for p in serve.params if p.name not in ("model_argument", "config", "help")}
    assert set(options) == set(ServeConfig.model_fields) - {"engine_args", *FILE_ONLY}  # engine_args stand after `--`
    for name, option in options.items():
        assert f"--{name.replace('_', '-')}" in option.opts
        assert option.envvar == f"ONEBIT_{name.upper()}"
        assert option.help
    for field in ServeConfig.model_fields.values():
        assert field.description


def test_the_example_config_is_valid() -> None:
    config = load({}, ROOT / "docs/onebit.example.yaml")
    assert [(m.name, m.settings.model, m.settings.preload) for m in config.served()] == [("demo", "demo", True)]


def test_what_the_example_config_leaves_out_is_valid_too(tmp_path: Path) -> None:
    text = (ROOT / "docs/onebit.example.yaml").read_text()
    whole = re.sub(r"^#(?=\w|  )", "", text, flags=re.MULTILINE)
    assert whole.count("\n#\n") == text.count("\n#\n") and whole != text
    (tmp_path / "onebit.yaml").write_text(whole)
    for name in ("qwen.gguf", "members.key", "pirate.gguf"):
        (tmp_path / name).touch()
    config = load({}, tmp_path / "onebit.yaml")
    assert [key.name for key in config.keys] == ["shop", "members"]
    assert [model.name for model in config.served()] == ["demo", "chat", "small"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert page.stat().st_size > 200, "an empty page"
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_public_function_has_a_docstring() -> None:
    import ast

    missing = []
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        classes = [c for c in tree.body if isinstance(c, ast.ClassDef) and not c.name.startswith("_")]
        nodes = [tree, *tree.body, *(n for c in classes for n in c.body)]
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = getattr(node, "name", path.name)
                if not name.startswith("_") and ast.get_docstring(node) is None:
                    missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
