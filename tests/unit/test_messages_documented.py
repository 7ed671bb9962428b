"""docs/protocol.md says what the code does: kinds, bodies, reasons, limits, timers, offsets and examples."""

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from tests.helpers import layout_id, row_layout
from zerobeast.common import transport
from zerobeast.common.settings.run import ActorConfig, BrokerConfig, EnvConfig, EnvServerConfig, LearnerConfig
from zerobeast.common.wire import codec, layout, messages, session, spaces, specs, stream
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.layout import RecordSpec
from zerobeast.common.wire.messages import (
    BODIES,
    MAX_HEADER_BYTES,
    PROTOCOL_VERSION,
    TOPIC_BYTES,
    Header,
    Kind,
    Plane,
    Reason,
    pack_header,
    topic,
)
from zerobeast.common.wire.records import act_record, action_record, rollout_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.waits import TIMEOUTS
from zerobeast.services.envserver import infos
from zerobeast.services.envserver.sessions import MAX_ENVS_PER_SESSION, MAX_SESSIONS
from zerobeast.services.learner import window

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
FLAT = " ".join(PAGE.split())
PONG = EnvSpec(
    "PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), frame_stack=4, frame_skip=4
)
CARTPOLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
TYPES: dict[Any, str] = {
    int | list | None: "integer, array or nil",
    int | None: "integer or nil",
    float | None: "float or nil",
    dict | None: "map or nil",
    list | None: "array or nil",
    dict: "map",
    str: "string",
    list: "array",
    bool: "boolean",
    int: "integer",
}
SIX, TWO = (PolicySpec(logits_and_value(n), core_size=0) for n in (6, 2))
LAYOUTS: dict[str, tuple[RecordSpec, RecordSpec]] = {
    "step row": (step_record(PONG), step_record(CARTPOLE)),
    "action row": (action_record(PONG.action), action_record(CARTPOLE.action)),
    "act row": (act_record(PONG, SIX), act_record(CARTPOLE, TWO)),
    "rollout row": (rollout_record(PONG, SIX, 20), rollout_record(CARTPOLE, TWO, 20)),
}


def table(heading: str) -> list[list[str]]:
    """Rows of the table whose first line starts with `heading`."""
    lines = PAGE[PAGE.index(f"\n{heading}") + 1 :].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def number(text: str) -> int:
    found = re.search(r"[\d,]+", text)
    assert found, text
    return int(found[0].replace(",", ""))


def hexadecimal(line: str) -> bytes:
    """The bytes of the page's hexadecimal block that begins with this indented line."""
    start = PAGE.index(f"\n    {line}") + 1
    return bytes.fromhex(PAGE[start : PAGE.index("\n\n", start)])


def test_the_catalogue_is_that_of_the_code() -> None:
    rows = table("| number | kind |")
    assert [(int(row[0]), row[1]) for row in rows] == [(int(kind), kind.name) for kind in Kind]
    for row in rows:
        wanted = [TYPES[entry] for entry in BODIES[Kind[row[1]]]]
        if row[1] == "WEIGHTS":
            assert len(row[5].split(",")) == len(wanted)
        else:
            assert re.findall(r": (\w+(?:, array)?(?: or nil)?)", row[5]) == wanted


def test_the_planes_are_those_of_the_code() -> None:
    letters = [row[4].strip("`").encode() for row in table("| plane | server |")]
    assert letters == [plane.value for plane in Plane]


def test_the_reasons_are_those_of_the_code() -> None:
    assert {row[0].strip("`") for row in table("| reason | meaning |")} == {str(reason) for reason in Reason}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_offsets_are_those_of_the_code(name: str) -> None:
    rows = {row[0].split(" (")[0]: row[1:] for row in table(f"| {name} | Pong | CartPole |")}
    for column, spec in enumerate(LAYOUTS[name]):
        expected = {field: offset for field, _, _, offset in row_layout(spec)}
        expected |= {"row size": spec.row_bytes, "layout id": layout_id(spec)}
        assert {field: int(cells[column]) for field, cells in rows.items()} == expected


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_fields_are_those_of_the_code(name: str) -> None:
    rows = table(f"| {name} | type |")
    names = {"obs type": "|u1", "action type": "<i8"}
    extras = [(name, dtype) for name, dtype, _ in SIX.extras]
    found: list[tuple[str, str]] = []
    for field, dtype, *_ in (row for row in rows if row[0] != "action_mask"):  # these environments have none
        found += extras if "extras" in field else [(field, names.get(dtype.strip("`"), dtype.strip("`")))]
    assert found == [(field, dtype) for field, dtype, _, _ in row_layout(LAYOUTS[name][0])]


def test_the_element_types_are_those_of_the_code() -> None:
    found = {name for row in table("| element type |") for name in re.findall(r"`([^`]+)`", row[0])}
    assert found == set(codec.DTYPES)


def test_the_limits_are_those_of_the_code() -> None:
    limits = {row[0]: row[1] for row in table("| what | most |")}
    assert number(limits["a frame"]) == transport.MAX_FRAME_BYTES
    assert number(limits["a header"]) == MAX_HEADER_BYTES
    assert number(limits["an array inside msgpack"]) == codec.MAX_ARRAY_BYTES
    assert f"{codec.MAX_NDIM} dimensions" in limits["an array inside msgpack"]
    assert number(limits["a row"]) == layout.MAX_ROW_BYTES
    assert number(limits["a chunk of weights"]) == transport.CHUNK_BYTES
    assert number(limits["options of a RESET"]) == messages.MAX_OPTIONS_BYTES
    of_infos = [infos.MAX_NAMES, infos.MAX_NAME_LENGTH, infos.MAX_BYTES]
    assert [number(part) for part in re.findall(r"[\d,]*\d", limits["infos of a step"])] == of_infos
    assert number(limits["sessions of a broker or learner"]) == session.SessionTable(1).limit
    assert number(limits["sessions of one env-server"]) == MAX_SESSIONS
    assert number(limits["environments of one env-server, `envserver.max_envs`"]) == EnvServerConfig().max_envs
    assert number(limits["processes of one env-server, `envserver.max_workers`"]) == EnvServerConfig().max_workers
    assert number(limits["environments in a session on the steps plane"]) == MAX_ENVS_PER_SESSION
    assert number(limits["unacknowledged ROLLOUTs of a slot"]) == window.MAX_WINDOW
    assert f"since the previous ROLLOUT, at most {messages.MAX_EPISODES:,}" in FLAT
    assert f"Those of one space sum to at most {spaces.MAX_CHOICES:,}" in FLAT
    assert f"strings of 1 to {spaces.MAX_NAME} printable" in FLAT
    assert f"at most {spaces.MAX_PARTS} arrays" in FLAT
    assert f"integer, 0 to {specs.MAX_CORE_SIZE:,}" in FLAT
    assert f"at most {2 * spaces.MAX_CHOICES:,} elements" in FLAT
    assert f"at most {specs.MAX_EXTRAS} |" in FLAT


def test_the_timers_are_those_of_the_code() -> None:
    timers = {row[0]: row[1] for row in table("| timer | seconds |")}
    assert float(timers["HELLO again"]) == stream.HELLO_PERIOD_S
    assert float(timers["HELLO again after `busy`"]) == stream.BUSY_PERIOD_S
    pauses = timers["pause after the fourth setback in a row; longest pause"].split("; ")
    assert [*map(float, pauses)] == [stream.HELLO_PERIOD_S, stream.RESEND_LIMIT_S]
    assert stream.PROMPT_SETBACKS == 3
    assert float(timers["a session that still answers after this time ends a row of setbacks"]) == stream.LASTING_S
    again = timers["same request again, first interval; longest interval"].split("; ")
    assert [*map(float, again)] == [stream.RESEND_AFTER_S, stream.RESEND_LIMIT_S]
    assert number(timers["a connection on which nothing arrives is replaced"]) == TIMEOUTS.silent
    assert number(timers["an actor gives up on a server that it does not hear from"]) == ActorConfig().connect_timeout_s
    without_ack = "HELLO again on the rollouts plane, without an ACK"
    assert float(timers[without_ack]) == TIMEOUTS.no_progress
    assert float(timers["a server closes a session without a request"]) == session.UNUSED_S


def test_the_default_endpoints_are_those_of_the_code() -> None:
    for section in (EnvServerConfig(), BrokerConfig(), LearnerConfig()):
        assert f"`{section.endpoint}`" in FLAT


def test_the_settings_of_an_environment_are_those_of_the_code() -> None:
    rows = table("| key of `env` |")
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[0])} == set(EnvConfig.model_fields)


def test_the_example_descriptions_are_those_of_the_code() -> None:
    start = FLAT.index(f'{{"env_id": "{PONG.env_id}"')
    pong, end = json.JSONDecoder().raw_decode(FLAT, start)
    assert EnvSpec.from_wire(pong).for_policies() == PONG
    hybrid, _ = json.JSONDecoder().raw_decode(FLAT, FLAT.index("{", end))
    action = EnvSpec.from_wire(pong | {"action": hybrid}).action
    assert action == CompositeSpace(
        "dict", (Part("kick", ArraySpace.box((2,), low=(-1.0,), high=(1.0,))), Part("who", ArraySpace.discrete(11)))
    )


def test_the_example_bytes_are_those_of_the_code() -> None:
    assert hexadecimal("73 ef cd") == topic(Plane.STEPS, 0x0123456789ABCDEF)
    assert len(hexadecimal("73 ef cd")) == TOPIC_BYTES
    assert hexadecimal("96 04 06") == pack_header(Header(Kind.STEP, 7, 0, 5, 3))
    bodies: list[tuple[Any, ...]] = [(42,), (None, {"low": -0.1}), (None, None, [True, False])]
    resets = [Header(Kind.RESET, 7, 0, 5, 1, body) for body in bodies]
    assert hexadecimal("97 04 05") == b"".join(map(pack_header, resets))
    assert hexadecimal("97 04 07") == pack_header(Header(Kind.OBS, 7, 0, 5, 3, ([[3.0, 3]],)))
    assert hexadecimal("85 c4 02") == pack(np.array([1, 2], np.uint8))
    assert hexadecimal("95 94 a3") == pack(row_layout(step_record(CARTPOLE)))
    assert msgpack.unpackb(hexadecimal("96 04 06"))[0] == PROTOCOL_VERSION
    assert PAGE.startswith(f"# The wire protocol, version {PROTOCOL_VERSION}\n")
