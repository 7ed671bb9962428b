"""The site of the documentation is built strictly, and neither its pages nor its search fetch anything."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

#: of elements and styles that a browser fetches by itself, as opposed to links
FETCHED = re.compile(
    r'<(?:script|img|source|iframe|link rel="(?:stylesheet|preconnect)")[^>]+(?:src|href)="(https?:[^"]+)'
)


def test_the_site_is_built_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    build = ["make", "site", f"DOCS={venv}"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    if not (venv / ".ready").exists():
        pytest.skip(f"MkDocs cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    pages = [*(ROOT / "build" / "site").rglob("*.html")]
    assert len(pages) > 80
    assert {found for page in pages for found in FETCHED.findall(page.read_text())} == set()
