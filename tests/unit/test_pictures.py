"""What is drawn beside an environment, from what policies of every kind say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.batches import REACH
from tests.build.folders import policy_run
from zerobeast.api.saved import load
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.evaluator.outlook import Choice, Outlook, Span, outlook
from zerobeast.services.evaluator.pictures import BAR, CURVE, PANEL, TAKEN, Moment, Painter

MASKED = EnvSpec("Masked-v0", ArraySpace.box((3,)), ArraySpace.discrete(4), action_mask=True)
KINDS = (Part("kind", ArraySpace.multi_discrete(2, 3)), Part("force", ArraySpace.box((2,), low=(-1.0,), high=(3.0,))))
HYBRID = EnvSpec("Hybrid-v0", ArraySpace.box((3,)), CompositeSpace("dict", KINDS))
MASK = np.array([[True, False, True, True]])


def of(folder: Path, algo: str, env: EnvSpec, *flags: str, **given: Any) -> Outlook:
    """The outlook of a fresh policy at its first step."""
    policy = load(policy_run(folder / algo, algo, env, *flags))
    obs = np.ones((1, *env.obs.arrays[0].shape), np.float32)
    actions, _ = policy.predict(obs, **given)
    return outlook(policy, obs, None, actions, **given)


def test_choices_are_bars_of_probabilities_or_of_action_values_between_the_lowest_and_the_highest_legal_one(
    tmp_path: Path,
) -> None:
    found = of(tmp_path, "ppo", MASKED, action_mask=MASK)
    (choice,) = found.components
    assert isinstance(choice, Choice)
    assert (found.value is not None, found.heading) == (True, "action probabilities")
    assert (sum(choice.bars), choice.bars[1]) == (pytest.approx(1.0), 0.0)
    assert choice.taken == int(np.argmax(choice.bars))
    found = of(tmp_path, "dqn", MASKED, "--dqn.replay_size=10000", action_mask=MASK)
    (choice,) = found.components
    assert isinstance(choice, Choice)
    assert (found.heading, choice.bars[1], choice.texts[1]) == ("action values", 0.0, "-")
    assert choice.bars[choice.taken] == max(choice.bars) == pytest.approx(1.0)
    assert found.value == pytest.approx(float(choice.texts[choice.taken]), abs=0.01)


def test_real_actions_are_places_in_their_box_with_a_band_if_they_are_drawn(tmp_path: Path) -> None:
    found = of(tmp_path, "sac", REACH, "--sac.replay_size=10000")
    assert (found.value, found.heading) == (None, "actions, median and deviation")
    for span in found.components:
        assert isinstance(span, Span)
        assert span.band is not None
        assert 0 <= span.band[0] < span.taken < span.band[1] <= 1
    found = of(tmp_path, "td3", REACH, "--td3.replay_size=10000")
    assert (found.heading, {span.band for span in found.components if isinstance(span, Span)}) == ("actions", {None})
    parts = of(tmp_path, "impala", HYBRID).components
    assert sorted(type(part).__name__ for part in parts) == ["Choice", "Choice", "Span", "Span"]


def moment(view: Outlook | None, size: tuple[int, int] = (210, 160), remark: str = "") -> Moment:
    return Moment(np.full((*size, 3), 200, np.uint8), ("left", "right"), "Env-v0", 1234, -20.5, view, remark)


def colours(picture: np.ndarray) -> set[str]:
    return {f"#{colour:06x}" for colour in np.unique(picture @ np.array([1 << 16, 1 << 8, 1])).tolist()}


@pytest.mark.parametrize(("size", "shown"), [((210, 160), (420, 320)), ((10, 10), (520, 520)), ((99, 999), (64, 640))])
def test_pictures_have_even_sides_and_a_panel_whatever_the_environment_shows(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    painter = Painter("run")
    picture = painter.draw(moment(None, size, remark="over"))
    assert picture.shape == (max(400, shown[0]), shown[1] + PANEL, 3)
    assert not any(side % 2 for side in picture.shape[:2])
    assert painter.draw(moment(None, (30, 50))).shape == picture.shape, "one video has one size"
    assert TAKEN in colours(picture), "the remark"


@pytest.mark.parametrize("count", [1, 18, 3000])
def test_any_number_of_choices_and_components_fits(count: int) -> None:
    bars = np.linspace(0.1, 1.0, count).tolist()
    choice, span = Choice(0, bars, [f"{bar:.2f}" for bar in bars]), Span(0.5, (0.2, 0.8), "0.00")
    view = Outlook(1.5, "action probabilities", [choice])
    drawn = Painter("a run with a name that is much longer than the panel is wide").draw(moment(view))
    assert {TAKEN, CURVE} | ({BAR} if count > 1 else set()) <= colours(drawn)
    for components in ([span] * count, [Choice(1, [0.3, 0.7], ["0.30", "0.70"]), Choice(1, [], [])] * count):
        assert TAKEN in colours(Painter("run").draw(moment(Outlook(None, "actions", [*components]))))


def test_the_curve_begins_anew_with_an_episode() -> None:
    painter, view = Painter("run"), Outlook(1.0, "actions", [Choice(0, [], [])])
    painter.begin("episode 2")
    first = painter.draw(moment(view))
    painter.draw(moment(view._replace(value=5.0)))
    painter.begin("episode 2")
    assert (painter.draw(moment(view)) == first).all()
