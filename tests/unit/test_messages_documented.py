"""docs/protocol.md has what the author of another program copies from it: numbers, offsets, limits and examples."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import layout_id, row_layout
from zerobeast.common import transport, wire
from zerobeast.common.wire import EnvSpec, PolicySpec, RecordSpec, codec, layout, messages, step_record, stream
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, Plane, Reason, pack_header, topic
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FLAT = " ".join(PAGE.split())
PONG = EnvSpec(
    "PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), frame_stack=4, frame_skip=4
)
CARTPOLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
SIX, TWO = (PolicySpec(logits_and_value(n), core_size=0) for n in (6, 2))
LAYOUTS: dict[str, tuple[RecordSpec, RecordSpec]] = {
    "step row": (step_record(PONG), step_record(CARTPOLE)),
    "action row": (wire.action_record(PONG.action), wire.action_record(CARTPOLE.action)),
    "act row": (wire.act_record(PONG, SIX), wire.act_record(CARTPOLE, TWO)),
    "rollout row": (wire.rollout_record(PONG, SIX, 20), wire.rollout_record(CARTPOLE, TWO, 20)),
}


def table(heading: str) -> list[list[str]]:
    """Rows of the table whose first line starts with `heading`."""
    lines = PAGE[PAGE.index(f"\n{heading}") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def number(text: str) -> float:
    return float(re.findall(r"[\d,.]*\d", text)[0].replace(",", ""))


def hexadecimal(line: str) -> bytes:
    """The bytes of the page's hexadecimal block that begins with this indented line."""
    start = PAGE.index(f"\n    {line}") + 1
    return bytes.fromhex(PAGE[start : PAGE.index("\n\n", start)])


def test_the_names_and_numbers_are_those_of_the_code() -> None:
    assert PAGE.startswith(f"# The wire protocol, version {PROTOCOL_VERSION}\n")
    assert [(int(row[0]), row[1]) for row in table("| number | kind |")] == [(int(kind), kind.name) for kind in Kind]
    assert [row[4].strip("`").encode() for row in table("| plane | server |")] == [plane.value for plane in Plane]
    assert {row[0].strip("`") for row in table("| reason | meaning |")} == {str(reason) for reason in Reason}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_offsets_are_those_of_the_code(name: str) -> None:
    rows = {row[0].split(" (")[0]: row[1:] for row in table(f"| {name} | Pong | CartPole |")}
    for column, spec in enumerate(LAYOUTS[name]):
        expected = {field: offset for field, _, _, offset in row_layout(spec)}
        expected |= {"row size": spec.row_bytes, "layout id": layout_id(spec)}
        assert {field: int(cells[column]) for field, cells in rows.items()} == expected


def test_the_limits_and_timers_that_peers_have_to_keep_are_those_of_the_code() -> None:
    limits = {row[0]: number(row[1]) for row in table("| what | most |")}
    assert limits["a frame"] == transport.MAX_FRAME_BYTES
    assert limits["a header"] == messages.MAX_HEADER_BYTES
    assert limits["an array inside msgpack"] == codec.MAX_ARRAY_BYTES
    assert limits["a row"] == layout.MAX_ROW_BYTES
    assert limits["a chunk of weights"] == transport.CHUNK_BYTES
    assert limits["unacknowledged ROLLOUTs of a slot"] == messages.MAX_WINDOW
    timers = {row[0]: number(row[1]) for row in table("| timer | seconds |")}
    assert timers["HELLO again"] == stream.HELLO_PERIOD_S
    assert timers["same request again, first interval; longest interval"] == stream.RESEND_AFTER_S


def test_the_example_descriptions_are_those_of_the_code() -> None:
    start = FLAT.index(f'{{"env_id": "{PONG.env_id}"')
    pong, end = json.JSONDecoder().raw_decode(FLAT, start)
    assert EnvSpec.from_wire(pong).for_policies() == PONG
    hybrid, _ = json.JSONDecoder().raw_decode(FLAT, FLAT.index("{", end))
    action = EnvSpec.from_wire(pong | {"action": hybrid}).action
    kick, who = ArraySpace.box((2,), low=(-1.0,), high=(1.0,)), ArraySpace.discrete(11)
    assert action == CompositeSpace("dict", (Part("kick", kick), Part("who", who)))


def test_the_example_bytes_are_those_of_the_code() -> None:
    bodies: list[tuple[Any, ...]] = [(42,), (None, {"low": -0.1}), (None, None, [True, False])]
    assert hexadecimal("73 ef cd") == topic(Plane.STEPS, 0x0123456789ABCDEF)
    assert hexadecimal("96 04 06") == pack_header(Header(Kind.STEP, 7, 0, 5, 3))
    assert hexadecimal("97 04 05") == b"".join(pack_header(Header(Kind.RESET, 7, 0, 5, 1, body)) for body in bodies)
    assert hexadecimal("97 04 07") == pack_header(Header(Kind.OBS, 7, 0, 5, 3, ([[3.0, 3]],)))
    assert hexadecimal("85 c4 02") == pack(np.array([1, 2], np.uint8))
    assert hexadecimal("95 94 a3") == pack(row_layout(step_record(CARTPOLE)))
