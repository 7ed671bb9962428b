"""The site of the documentation: its navigation, its links, and what it shows of files that are no pages."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from tests.helpers import ROOT
from zerobeast_tools.site.links import anchors_of, is_page, links_of, place_in_site, rewrite_links
from zerobeast_tools.site.source_pages import show, show_notebook

PAGES = sorted(
    path for path in (PurePosixPath(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.*")) if is_page(path)
)


class Loader(yaml.SafeLoader):
    """Reads settings that name Python objects, without importing these."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, suffix, _node: suffix)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def places(nav: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from places(part)


def pages_to_read() -> dict[PurePosixPath, str]:
    """All pages in Markdown that the site has: its own, and those of the repository that these lead to."""
    texts, waiting = {}, [path for path in PAGES if path.suffix == ".md"]
    while waiting:
        page = waiting.pop()
        texts[page] = (ROOT / page).read_text()
        targets = {link.target for link in links_of(page, texts[page])} - texts.keys()
        waiting += [each for each in targets if each.suffix == ".md" and (ROOT / each).is_file()]
    return texts


def test_every_page_is_in_the_navigation_once_and_nothing_else() -> None:
    assert sorted(places(SITE["nav"])) == sorted(map(place_in_site, PAGES))


def test_every_relative_link_leads_to_something_and_every_fragment_to_a_heading() -> None:
    texts = pages_to_read()
    links = [(page, link) for page, text in texts.items() for link in links_of(page, text)]
    assert len(links) > 300
    assert [each for each in links if not (ROOT / each[1].target).exists()] == []
    anchors = {page: anchors_of(text) for page, text in texts.items()}
    assert [
        (page, link) for page, link in links if link.fragment and link.fragment not in anchors.get(link.target, ())
    ] == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert "http" not in str({name: SITE.get(name, "") for name in ("extra", "extra_css", "extra_javascript")})


@pytest.mark.parametrize(
    ("link", "in_site"),
    [
        ("[a](b.md#c)", "[a](b.md#c)"),
        ("[a](#c)", "[a](#c)"),
        ("[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("[a](../README.md#c)", "[a](source/README.md#c)"),
        ("[a](../src/b.py)", "[a](source/src/b.py.md)"),
        ("[a](examples/b)", "[a](source/docs/examples/b.md)"),
        ("[a](examples/tour/tour.ipynb)", "[a](examples/tour/tour.md)"),
        ('<img src="b.png">', '<img src="b.png">'),
        ("[a](missing.md)", "[a](missing.md)"),
        ("```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_a_link_that_leaves_the_pages_leads_to_a_page_that_shows_its_target(link: str, in_site: str) -> None:
    page = PurePosixPath("docs/page.md")
    assert rewrite_links(page, link, lambda path: path.stem != "missing") == in_site


def test_a_link_back_from_a_file_that_is_shown_leads_to_the_page() -> None:
    page, text = PurePosixPath("services/actor/README.md"), '[a](../../docs/b.md) <img src="../../docs/b.png">'
    back = "../../.."
    assert rewrite_links(page, text, lambda _path: True) == f'[a]({back}/b.md) <img src="{back}/b.png">'


def test_a_folder_and_a_notebook_are_shown_with_what_they_contain(tmp_path: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("x = 1\n")
    (tmp_path / "a" / "c.bin").write_bytes(bytes(7))
    page = show(tmp_path, "a")
    assert "# a\n\n## b.py\n\n``````python\nx = 1\n``````\n" in page
    assert "## c.bin\n\n7 bytes" in page
    image, text = {"data": {"image/png": "QUJD\n", "text/plain": "<Figure>"}}, {"text": ["said"]}
    cells = [
        {"cell_type": "markdown", "source": ["# a"]},
        {"cell_type": "code", "source": ["plot()"], "outputs": [image, text]},
    ]
    shown = show_notebook(json.dumps({"cells": cells}))
    assert [part in shown for part in ("# a", "python\nplot()", 'base64,QUJD"', "text\nsaid", "<Figure>")] == [
        1,
        1,
        1,
        1,
        0,
    ]
