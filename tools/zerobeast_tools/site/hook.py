"""The events of MkDocs at which pages become what the site needs; mkdocs.yml names this file."""

import logging
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

from zerobeast_tools.site.links import DOCS, is_page, links_of, place_in_site, rewrite_links
from zerobeast_tools.site.source_pages import show, show_notebook

log = logging.getLogger("mkdocs.hooks.site")  # whose warnings `mkdocs build --strict` counts

ROOT = Path(__file__).resolve().parents[3]
#: parts of the HTML of the API reference
OBJECT, SIGNATURE, TAG = (
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r'<h\d id="([^"]+)" class="doc doc-heading">',
        r'<div class="doc-signature.*?</pre></div>',
        r"<[^>]+>",
    )
)
origins: dict[str, PurePosixPath] = {}  #: page of the site -> file or folder of the repository that it is made of


def exists(path: PurePosixPath) -> bool:
    """Whether the repository has such a file or folder."""
    return ".." not in path.parts and (ROOT / path).exists()


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, and for each file or folder that a page links to."""
    origins.clear()
    own = [path for path in map(PurePosixPath, _paths_below_docs()) if is_page(path)]
    waiting = sorted(own)
    while waiting:
        path = waiting.pop()
        if (place := place_in_site(path)) in origins:
            continue
        origins[place] = path
        if not (is_page(path) and path.suffix == ".md"):
            kind = InclusionLevel.INCLUDED if is_page(path) else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place, content=_content(path), inclusion=kind))
        if path.suffix == ".md":
            targets = {link.target for link in links_of(path, (ROOT / path).read_text())}
            waiting += [each for each in targets if place_in_site(each).endswith(".md") and exists(each)]
    return files


def _paths_below_docs() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in (ROOT / DOCS).rglob("*.*")]


def _content(path: PurePosixPath) -> str:
    if path.suffix == ".md":
        return (ROOT / path).read_text()
    return show_notebook((ROOT / path).read_text()) if path.suffix == ".ipynb" else show(ROOT, str(path))


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """Let links lead to pages of the site."""
    origin = origins[page.file.src_uri]
    return rewrite_links(origin, markdown, exists) if origin.suffix in (".md", ".ipynb") else markdown


def on_page_content(html: str, page: Any, **_others: Any) -> str:
    """Report objects of the API reference that lack a docstring."""
    _, *parts = OBJECT.split(html)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        heading, _, rest = part.partition("</h")
        is_field = "doc-attribute-name" in heading and "label-property" not in heading
        if not is_field and not TAG.sub("", SIGNATURE.sub("", f"</h{rest}")).strip():
            log.warning("%s: %s has no docstring", page.file.src_uri, name)
    return html
