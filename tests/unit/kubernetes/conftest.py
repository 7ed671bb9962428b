"""Every combination under test: the base, each component alone, and all at once."""

import pytest

from tests.unit.kubernetes.manifests import ORDER, WHY_NOT, Rendered, render, render_own

COMBINATIONS = [(), *((name,) for name in ORDER), ORDER]


@pytest.fixture(scope="session", params=COMBINATIONS, ids=lambda chosen: "+".join(chosen) or "base")
def chosen(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Components of one combination, in order."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    return tuple(request.param)


@pytest.fixture(scope="session")
def run(chosen: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The objects rendered from the base with these components."""
    if len(chosen) > 1:
        return render_own(tmp_path_factory.mktemp("overlay"), chosen)
    return render(f"overlays/{chosen[0]}" if chosen else "base")
