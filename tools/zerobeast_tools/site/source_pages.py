"""Files of the repository as pages in Markdown: source code, a folder, a notebook with its outputs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FENCE = "``````"  #: longer than any in a file that is shown
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".js": "javascript", ".json": "json"}
TEXTS = {".md": "markdown", ".txt": "text", ".csv": "text", ".sh": "bash", "": "text", **LANGUAGES}
NOT_SEARCHED = "---\nsearch: { exclude: true }\n---\n\n"  #: who searches the documentation looks for prose
MAX_BYTES = 100_000  #: of a file; of a longer one the name alone is shown


def show(root: Path, place: str) -> str:
    """The page of a file or folder below the root: that of a folder shows each of its files."""
    path = root / place
    title = f"{NOT_SEARCHED}# {place}\n\n"
    if path.is_file():
        return title + _block(path)
    files = sorted(each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
    return title + "\n".join(f"## {each.relative_to(path)}\n\n{_block(each)}" for each in files)


def _block(path: Path) -> str:
    language = TEXTS.get(path.suffix)
    size = path.stat().st_size
    if language is None or size > MAX_BYTES:
        return f"{size:,} bytes, not shown.\n"
    return _fence(language, path.read_text())


def _fence(language: str, text: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}\n"


def show_notebook(text: str) -> str:
    """The page of a notebook: its cells, with the outputs that it was saved with."""
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _show_cell(cell))


def _show_cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fence("python", source)
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if image := data.get("image/png"):
            encoded = "".join("".join(image).split())
            yield f'<img alt="output of the cell above" src="data:image/png;base64,{encoded}">'
        elif plain := "".join(data.get("text/plain", "")):
            yield _fence("text", plain)
