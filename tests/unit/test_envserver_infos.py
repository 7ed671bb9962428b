"""Infos of many environments in one table: what fits is laid out as in gymnasium, the rest is counted."""

from typing import Any

import numpy as np
import pytest

from zerobeast.common.wire.codec import pack, unpack
from zerobeast.common.wire.messages import MAX_HEADER_BYTES, Header, Kind, pack_header
from zerobeast.services.envserver.infos import MAX_BYTES, MAX_NAMES, MAX_NUMBERS, InfoTable, extract_numbers


def table(*infos: Any) -> InfoTable:
    found = InfoTable(len(infos))
    for env, info in enumerate(infos):
        found.put_one(info, env)
    return found


def plain(infos: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(each) if isinstance(each, dict) else each.tolist() for name, each in infos.items()}


def test_a_name_that_only_some_environments_report_comes_with_a_mask_of_them() -> None:
    found = table({"a": 1}, {}, {"a": 3, "b": {"c": 0.5}})
    assert plain(found.infos) == {
        "a": [1, 0, 3],
        "_a": [True, False, True],
        "b": {"c": [0, 0, 0.5], "_c": [False, False, True]},
        "_b": [False, False, True],
    }
    assert found.left_out == 0
    found.clear()
    assert found.infos == {}


def test_types_and_shapes_are_kept_and_what_differs_from_them_is_left_out() -> None:
    found = table({"a": np.float32(1), "b": np.zeros((2, 1), np.uint8)}, {"a": 2, "b": np.ones((1, 2), np.uint8)})
    assert (found.infos["a"].dtype, found.infos["b"].shape) == (np.float32, (2, 2, 1))
    assert (found.left_out, found.infos["_b"].tolist()) == (1, [True, False])
    assert plain(table({"a": 1}, {"a": 0.5}).infos) == {"a": [1, 0], "_a": [True, False]}, "no half is rounded"
    assert table({"a": 1}, {"a": {"b": 1}}).left_out == table({"a": {"b": 1}}, {"a": 1}).left_out == 1


@pytest.mark.parametrize(
    "info",
    [
        *({"x": value} for value in ("text", None, [1], (1,), b"1", 1j, 2**70, object, np.array(["a"]))),
        *({"x": value} for value in (np.array([None]), np.zeros(1, "<M8[s]"), np.zeros(1, ">f4"), np.zeros(MAX_BYTES))),
        *({name: 1} for name in ("", "_x", "nd", "x" * 101, "\ud800", "\n", 5, None, ("x",))),
    ],
    ids=lambda info: ascii(info)[:30],
)
def test_entries_that_are_no_named_numbers_are_left_out_and_counted(info: Any) -> None:
    found = table({**info, "good": 1})
    assert plain(found.infos) == {"good": [1], "_good": [True]}
    assert found.left_out == 1
    assert unpack(pack(found.infos)).keys() == {"good", "_good"}


def test_infos_that_are_no_map_are_ignored_and_a_map_that_contains_itself_is_cut_off() -> None:
    for wrong in (None, 5, [("a", 1)], "text"):
        found = table(wrong)
        found.put(wrong, slice(0, 1))
        assert found.infos == {}
    info: dict[str, Any] = {"a": 1}
    info["self"] = info
    found = table(info)
    assert plain(found.infos["self"]) == {"a": [1], "_a": [True]}
    assert found.left_out == 1


def test_tables_of_other_processes_are_merged_and_not_trusted() -> None:
    found = InfoTable(5)
    parts = [{"a": 1}, {}], [{}, {"b": 2}, {"a": 3}]
    found.put(table(*parts[0]).infos, slice(0, 2))
    found.put(table(*parts[1]).infos, slice(2, 5))
    assert plain(found.infos) == plain(table(*parts[0], *parts[1]).infos)
    found.put({"a": np.zeros(9), "b": "text", "_c": 1, "c": np.ones(3), "_d": np.ones(9), "d": {"x": 1}}, slice(2, 5))
    assert found.left_out == 3
    assert found.infos["_c"].tolist() == [False, False, True, True, True], "what is no mask means all"


@pytest.mark.parametrize("num_envs", [1, 4096])
def test_infos_of_any_size_fit_a_header_together_with_any_episodes(num_envs: int) -> None:
    found = InfoTable(num_envs)
    for env in range(0, num_envs, max(1, num_envs // 16)):
        found.put_one({"m" * 99: {f"{'ü' * 90}{n}": float(n) for n in range(70)}, "n" * 99: {"x": 1}}, env)
    assert found.infos
    assert found.left_out
    assert sum(len(each) if isinstance(each, dict) else 1 for each in found.infos.values()) <= 2 * MAX_NAMES
    assert len(pack(found.infos)) <= MAX_BYTES
    before, episodes = found.left_out, [[1.5, 1 << 40]] * num_envs
    header = Header(Kind.OBS, 2**62, 2**62, 2**62, 2**62, (episodes, found.beside(episodes)))
    if num_envs * 20 < MAX_HEADER_BYTES:
        assert len(pack_header(header)) <= MAX_HEADER_BYTES
    assert (found.infos == {}) == (num_envs == 4096) == (found.left_out > before)


def test_of_an_episodes_info_arrays_of_one_are_numbers_and_the_log_names_what_is_left_out_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.services.envserver.infos._told", [])
    assert extract_numbers({"a": np.array([1.0]), "b": np.array(True), "c": np.zeros(2), "d": [1]}) == {
        "a": 1.0,
        "b": 1.0,
    }
    many = {f"term_{number:02}": number for number in range(MAX_NUMBERS + 2)}
    for _ in range(2):
        assert len(extract_numbers(many)) == MAX_NUMBERS
    (line,) = caplog.messages
    assert line.endswith(f"without term_{MAX_NUMBERS}, term_{MAX_NUMBERS + 1}")
