"""Where a relative link of a page leads: to a page of the site, or to a page that shows a file of the repository.

Pages are written for the repository, in which a link may lead to any file or folder. All paths here are relative to
the repository's root.
"""

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

DOCS = PurePosixPath("docs")
NOT_PAGES = (DOCS / "examples", DOCS / "sweeps")  #: folders of docs whose files are shown as those outside docs are
PAGE_SUFFIXES = {".md", ".ipynb"}
IMAGE_SUFFIXES = {".png", ".svg", ".gif"}
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1 *$", re.DOTALL | re.MULTILINE)
#: the destination and the fragment of a Markdown link or image, or of an attribute of an HTML tag
LINK = re.compile(
    r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=[)\s])|(?<=(?:src|ref)=\")([^\"#]*)(#[^\"]*)?(?=\")|(?<=srcset=\")([^\"#]*)()(?=\")"
)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


class Link(NamedTuple):
    """A relative link of a page."""

    target: PurePosixPath  #: the page itself if it has a fragment alone
    fragment: str  #: with its #, or empty


def links_of(page: PurePosixPath, text: str) -> Iterator[Link]:
    """The relative links in the text of a page."""
    for found in LINK.finditer(FENCE.sub("", text)):
        if link := _parse(page, found):
            yield link


def _parse(page: PurePosixPath, found: re.Match[str]) -> Link | None:
    place, fragment = (next((group for group in found.groups()[at::2] if group), "") for at in (0, 1))
    if ":" in place or place.startswith("/") or not place + fragment:
        return None
    target = posixpath.normpath(page.parent / place) if place else page
    return Link(PurePosixPath(target), fragment)


def is_page(path: PurePosixPath) -> bool:
    """Whether a file is a page of the site itself, rather than shown by one."""
    is_shown = any(path.is_relative_to(folder) for folder in NOT_PAGES) and path.suffix != ".ipynb"
    return path.is_relative_to(DOCS) and path.suffix in PAGE_SUFFIXES and not is_shown


def place_in_site(path: PurePosixPath) -> str:
    """The file of the site's sources, relative to docs, that a file or folder of the repository has."""
    if is_page(path):
        return str(path.relative_to(DOCS).with_suffix(".md"))
    if path.is_relative_to(DOCS) and path.suffix in IMAGE_SUFFIXES:
        return str(path.relative_to(DOCS))
    return f"source/{path}" if path.suffix == ".md" else f"source/{path}.md"


def rewrite_links(page: PurePosixPath, text: str, exists: Callable[[PurePosixPath], bool]) -> str:
    """The text of a page with the links that it needs in the site; those whose target does not exist stay."""
    home = posixpath.dirname(place_in_site(page))

    def rewrite(found: re.Match[str]) -> str:
        link = _parse(page, found)
        if link is None or link.target == page or not exists(link.target):
            return found[0]
        return os.path.relpath(place_in_site(link.target), home or ".") + link.fragment

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(rewrite, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def anchors_of(text: str) -> set[str]:
    """The fragments that lead to headings of a page, as repository browsers and the site make them."""
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(FENCE.sub("", text))]
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
