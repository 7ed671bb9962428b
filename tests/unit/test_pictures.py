"""What is drawn beside an environment, from what policies of every kind say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.batches import REACH
from tests.build.folders import policy_run
from zerobeast.api.saved import load
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.evaluator.outlook import Choice, Outlook, Span, outlook
from zerobeast.services.evaluator.pictures import BAR, CURVE, PANEL, TAKEN, Moment, Painter

MASKED = EnvSpec("Masked-v0", ArraySpace.box((3,)), ArraySpace.discrete(4), action_mask=True)
HYBRID = EnvSpec(
    "Hybrid-v0",
    ArraySpace.box((3,)),
    CompositeSpace(
        "dict",
        (Part("kind", ArraySpace.multi_discrete(2, 3)), Part("force", ArraySpace.box((2,), low=(-1.0,), high=(3.0,)))),
    ),
)


def of(folder: Path, algo: str, env: EnvSpec, *flags: str, **given: Any) -> Outlook:
    """The outlook of a fresh policy at its first step."""
    policy = load(policy_run(folder, algo, env, *flags))
    obs = np.ones((1, *env.obs.arrays[0].shape), np.float32)
    actions, _ = policy.predict(obs, **given)
    return outlook(policy, obs, None, actions, **given)


def test_a_policy_of_choices_has_a_value_and_probabilities(tmp_path: Path) -> None:
    found = of(tmp_path, "ppo", MASKED, action_mask=np.array([[True, False, True, True]]))
    (choice,) = found.components
    assert isinstance(choice, Choice)
    assert found.value is not None
    assert found.heading == "action probabilities"
    assert (sum(choice.bars), choice.bars[1]) == (pytest.approx(1.0), 0.0)
    assert choice.taken == int(np.argmax(choice.bars))


def test_action_values_are_bars_between_the_lowest_and_the_highest_legal_one(tmp_path: Path) -> None:
    found = of(tmp_path, "dqn", MASKED, "--dqn.replay_size=10000", action_mask=np.array([[True, False, True, True]]))
    (choice,) = found.components
    assert isinstance(choice, Choice)
    assert found.heading == "action values"
    assert (choice.bars[1], choice.texts[1]) == (0.0, "-")
    assert choice.bars[choice.taken] == max(choice.bars) == pytest.approx(1.0)
    assert found.value == pytest.approx(float(choice.texts[choice.taken]), abs=0.01)


def test_real_actions_are_places_in_their_box_with_a_band_if_they_are_drawn(tmp_path: Path) -> None:
    found = of(tmp_path / "sac", "sac", REACH, "--sac.replay_size=10000")
    assert (found.value, found.heading) == (None, "actions, median and deviation")
    for span in found.components:
        assert isinstance(span, Span)
        assert span.band is not None
        assert 0 <= span.band[0] < span.taken < span.band[1] <= 1
    found = of(tmp_path / "td3", "td3", REACH, "--td3.replay_size=10000")
    assert found.heading == "actions"
    assert [span.band for span in found.components if isinstance(span, Span)] == [None] * REACH.action.shape[0]  # type: ignore[union-attr]


def test_actions_of_several_parts_have_components_of_each(tmp_path: Path) -> None:
    found = of(tmp_path, "impala", HYBRID)
    kinds = [type(component) for component in found.components]
    assert kinds == [Span, Span, Choice, Choice] or kinds == [Choice, Choice, Span, Span]
    for component in found.components:
        assert len(component.bars) in (2, 3) if isinstance(component, Choice) else component.band


def moment(
    view: Outlook | None, size: tuple[int, int] = (210, 160), names: tuple[str, ...] = (), remark: str = ""
) -> Moment:
    return Moment(np.full((*size, 3), 200, np.uint8), names, "Env-v0", 1234, -20.5, view, remark)


def colours(picture: np.ndarray) -> set[str]:
    return {f"#{colour:06x}" for colour in np.unique(picture @ np.array([1 << 16, 1 << 8, 1])).tolist()}


@pytest.mark.parametrize(
    ("size", "shown"),
    [((210, 160), (420, 320)), ((10, 10), (520, 520)), ((1000, 300), (520, 156)), ((99, 999), (64, 640))],
)
def test_pictures_have_even_sides_and_a_panel_whatever_the_environment_shows(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    painter = Painter("run")
    picture = painter.draw(moment(None, size, remark="over"))
    assert picture.shape == (max(400, shown[0]), shown[1] + PANEL, 3)
    assert not any(side % 2 for side in picture.shape[:2])
    assert painter.draw(moment(None, (30, 50))).shape == picture.shape, "one video has one size"
    assert TAKEN in colours(picture), "the remark"


@pytest.mark.parametrize("count", [1, 2, 18, 3000])
def test_any_number_of_choices_fits(count: int) -> None:
    bars = torch.linspace(0.1, 1.0, count).tolist()
    view = Outlook(1.5, "action probabilities", [Choice(0, bars, [f"{bar:.2f}" for bar in bars])])
    painter = Painter("a run with a name that is much longer than the panel is wide, and then some")
    for names in ((), tuple(f"ACTION {i}" for i in range(count))):
        assert {TAKEN, CURVE} | ({BAR} if count > 1 else set()) <= colours(painter.draw(moment(view, names=names)))


@pytest.mark.parametrize("count", [1, 60])
def test_components_of_any_kind_have_rows(count: int) -> None:
    span, choice = Span(0.5, (0.2, 0.8), "0.00"), Choice(1, [0.3, 0.7], ["0.30", "0.70"])
    for components in ([span] * count, [choice, span] * count, [Span(1.0, None, "3.00"), Choice(1, [], [])] * count):
        view = Outlook(None, "actions", list(components))
        assert TAKEN in colours(Painter("run").draw(moment(view, names=("left", "right"))))


def test_the_curve_begins_anew_with_an_episode() -> None:
    painter, view = Painter("run"), Outlook(1.0, "actions", [Choice(0, [], [])])
    painter.begin("episode 2")
    first = painter.draw(moment(view))
    painter.draw(moment(view._replace(value=5.0)))
    painter.begin("episode 2")
    assert (painter.draw(moment(view)) == first).all()
