"""What the documents promise is there: files, commands, options, the version."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import typer

from specplan import __version__
from specplan.cli import app

KNOWN_ELSEWHERE = {
    *("--upgrade", "--help", "--version", "--output"),  # pip's, and every command's
    *("--model", "--speculative-config", "--case", "--kv-len-jitter", "--exclude-drafter", "--output-json"),  # vLLM's
}
ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted((ROOT / "profiles").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), *SHIPPED]
GROUPS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# Of a group of commands, such as import, each of them: "import costs".
COMMANDS = {
    " ".join(filter(None, [name, part])): command
    for name, each in GROUPS.items()
    for part, command in getattr(each, "commands", {"": each}).items()
}


def page_name(page: Path) -> str:
    return f"{page.parent.name}/{page.name}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "demo.sh"], ids=page_name)
def test_commands_shown_exist_with_their_options(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    if page.suffix == ".md":  # prose may well begin a line with the tool's name
        text = "\n".join(re.findall(r"(?ms)^```\w*\n(.*?)^```", text))
    for command, rest in re.findall(r"(?m)^(?:run |\$ )?specplan ((?:import )?[a-z]+)(.*)$", text):
        assert command in COMMANDS, f"{page.name} shows specplan {command}"
        known = {option for parameter in COMMANDS[command].params for option in parameter.opts}
        shown = set(re.findall(r"(?<=\s)(--?[a-z][a-z-]*)", rest))
        assert shown <= known, f"{page.name}: specplan {command} has no {sorted(shown - known)}"


def test_hints_name_what_exists() -> None:
    """Every `specplan command` and every --option in a message of the code is one that a user can type."""
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    options = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    any_command = re.compile(r"specplan (profile|tables|record|simulate|import|plan|check|compare|export|doctor)\b")
    for path in sorted((ROOT / "specplan").rglob("*.py")):
        if "tiny" in path.parts:  # a script with options of its own
            continue
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for text in strings:
            shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
            assert shown <= options | KNOWN_ELSEWHERE, f"{path.name}: {text}"
            assert set(any_command.findall(text)) <= set(GROUPS), f"{path.name}: {text}"


def test_the_readme_shows_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [command for command in COMMANDS if f"specplan {command} " not in readme] == []


def test_nothing_is_left_to_fill_in() -> None:
    for page in PAGES:
        assert not re.search(r"(?m)^[A-Z_]{4,}$", page.read_text()), page.name


def test_the_changelog_knows_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_targets_the_readme_names_are_in_the_makefile() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_ci_runs_what_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_nothing_tracked_names_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    home = str(Path.home())
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".json", ".toml", ".sh", ".txt", ""}:
            text = path.read_text(errors="replace")
            assert str(ROOT) not in text, name
            if len(home) > 1:
                assert f"{home}/" not in text, name


def test_the_serving_example_runs() -> None:
    """What an engine's author would copy first."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/serving.md", "exec"), {})


def test_every_finding_has_its_line_in_the_manual() -> None:
    manual = (ROOT / "docs" / "findings.md").read_text()
    codes = set()
    for folder in ("costs", "planning"):
        for path in sorted((ROOT / "specplan" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "code":
                    codes |= {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    assert len(codes) > 30
    missing = {code for code in codes if f"`{code}`" not in manual and not code.startswith("-")}
    assert not missing
    for name in ("host", "draft-prefill"):
        assert f"`{name}-not-measured`" in manual
    for kind in ("re-run", "held-out"):
        assert f"`{kind}-error`" in manual
