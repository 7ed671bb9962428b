"""All that README and docs point at exists: functions (`file.py:Class.function`), files, links, commands and flags."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from zerobeast.cli.main import COMMANDS
from zerobeast.cli.train import TrainFlags
from zerobeast.common.config.load import gather

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("services/*/*.md"), *ROOT.glob("common/algos/*/*.md")]
page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def anchors(target: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@page
def test_functions_that_it_names_exist(page: Path) -> None:
    for file, name in re.findall(r"`([\w/.]+\.py):([\w.]+)`", page.read_text(encoding="utf-8")):
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            defined = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert part in defined, f"{file}:{name}"
            body = defined[part].body


@page
def test_files_that_it_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:zerobeast|common|services|tools|deploy|tests|docs)/[\w/.-]+)", text):
        assert (ROOT / name).exists(), name
    table = [row for row in text.splitlines() if row.startswith("| `")] if page.parent.name != "docs" else []
    for name in re.findall(r"`(\w+\.py)`", "\n".join(row.split(" | ")[0] for row in table)):
        assert (page.parent / name).exists(), name


@page
def test_its_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@page
def test_its_commands_and_their_flags_are_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    placeholders = {"ALGO": "ppo", "S": "1", "STEPS": "1000", "$seed": "1"}
    for found in re.findall(r"`beast ([^`]+)`|^[ \w./=]*\bbeast (\w.*)", text, re.MULTILINE):
        line = "".join(found).partition(";")[0]
        assert line.split()[0] in COMMANDS, line
        if line.startswith("train"):
            flags = [flag for flag in shlex.split(line, comments=True)[1:] if flag != "--help"]
            gather([placeholders.get(flag, flag) for flag in flags], {}, own=TrainFlags)
    for file in re.findall(r"\b(tests/[\w/]+\.py)\b", text):
        assert (ROOT / file).exists(), file


def test_the_way_of_an_observation_names_functions_in_ten_steps() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = text[text.index("## The way of an observation") :].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", way, flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    assert all(re.search(r"\.py:\w+", step) for step in steps)
