"""The whole broker over real sockets: everyone gets exactly what is theirs."""

import random
import time
from pathlib import Path

import pytest

from tests.broker_fakes import ECHO_POLICY, Client, stage
from tests.helpers import wait_until
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire.messages import Kind
from zerobeast.common.wire.stream import Reply

pytestmark = pytest.mark.integration


def hears_of_work(client: Client) -> None:
    """Wait until a request that comes again, and is not answered yet, is answered with a sign of life."""
    asked = time.monotonic()
    wait_until(lambda: client.port.send(*client.message()) and client.turn() and client.stream.heard_at > asked)


def test_64_clients_with_100_requests_each_get_exactly_their_own_rows(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path, max_batch_rows=48, max_batch_delay_s=0.001) as the:
        clients = [the.client(n) for n in random.Random(0).choices(range(1, 5), k=64)]
        answers = dict.fromkeys(range(64), 0)

        def turn(number: int, client: Client) -> None:
            reply = client.turn()
            if reply is Reply.ANSWER:
                assert client.answer is not None
                assert client.answer.rows["logits"].tolist() == (client.rows["obs"] + 1).tolist()
                assert client.answer.rows["action"].tolist() == [answers[number] + 1] * client.n
                answers[number] += 1
            if client.stream.open and not client.stream.waiting and answers[number] < 100:
                client.rows["obs"] = [[number, answers[number], row] for row in range(client.n)]
                client.request()

        def all_done() -> bool:
            for number, client in enumerate(clients):
                turn(number, client)
            return min(answers.values()) == 100

        wait_until(all_done, timeout_s=120)
        assert sum(answers.values()) == 6400
        assert all(client.turn() is None for client in clients), "nobody gets anything twice"
        assert the.broker.report()["refused"] == 0
        batches = [step.first.shape[1] for step in the.algorithms[0].seen[1:]]
        assert sum(batches) == sum(100 * client.n for client in clients)
        assert max(batches) <= 48
        assert len(batches) < 6400, "requests share batches"


def test_a_run_that_continues_draws_other_actions_than_when_it_began(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def drawn_by(run: int, version: int) -> set[int]:
        (folder := tmp_path / str(run)).mkdir()
        with stage(context, monkeypatch, endpoint, folder, (version,)) as the:
            client = the.welcomed()
            client.ask()
            the.learner.publish(version + 1)
            wait_until(lambda: (client.ask(), the.broker.report()["policy_version"] > version)[1])
            client.ask()
            return set(the.algorithms[0].seeds[1:])  # the first is a trial

    first, again, *later = [drawn_by(run, version) for run, version in enumerate([0, 0, 5, 6])]
    assert first == again == {RunConfig().seed}, "later versions change nothing"
    assert len(set.union(first, *later)) == 3


def test_requests_of_several_streams_of_one_client_do_not_mix(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        groups = [the.welcomed(n, slot=slot) for slot, n in enumerate((2, 3))]
        for step in range(3):
            for group in groups:
                group.rows["obs"] = step + group.n
                assert (group.ask().rows["logits"] == step + group.n + 1).all()
                assert group.answer is not None
                assert group.answer.header.slot == group.stream.slot


def test_clients_are_welcomed_at_once_and_answered_once_there_are_weights(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path, versions=(), max_batch_rows=4) as the:
        clients = [the.client(n) for n in (2, 1, 3)]
        for client in clients:
            client.until(Reply.WELCOME)
            assert client.stream.terms == {"policy": ECHO_POLICY.to_wire()}
            client.request()
        for client in clients:
            hears_of_work(client)
        assert len(the.broker._batcher) == 2, "that is what fits; who has to wait is told, and nothing is computed"
        assert the.broker._running is None
        the.learner.publish(7)
        for client in clients:
            client.until(Reply.ANSWER)
            assert client.answer is not None
            assert client.answer.version == 7


def test_stopping_without_weights_says_goodbye(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path, versions=()) as the:
        client = the.client()
        client.until(Reply.WELCOME)
        client.request()
        client.turn()
        wait_until(lambda: len(the.broker._batcher))
        the.broker.stop()
        client.until(Reply.LOST)


def test_a_repeated_request_is_answered_again_and_advances_nothing(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        client = the.welcomed(2)
        client.ask(core=True)
        client.request(core=True)
        header, rows = client.message(core=True)
        for _ in range(3):
            client.port.send(header, rows)
        client.until(Reply.ANSWER)
        first = client.answer
        client.port.send(header, rows)
        copies = []
        wait_until(lambda: copies.append(client.port.receive()) or [copy for copy in copies if copy])
        following = client.ask(core=True)
        assert first is not None
        assert first.rows["action"].tolist() == [2, 2]
        assert following.rows["action"].tolist() == [3, 3]
        assert following.cores is not None
        assert (following.cores == 2).all()
        assert sum(step.first.shape[1] for step in the.algorithms[0].seen[1:]) == 3 * 2


def test_the_cached_answer_survives_later_batches(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        early, late = the.welcomed(2), the.welcomed(2)
        early.rows["obs"] = 5
        early.request(core=True)
        header, rows = early.message(core=True)
        early.until(Reply.ANSWER)
        late.rows["obs"] = 100
        late.ask(core=True)
        early.port.send(header, rows)
        again = wait_until(early.port.receive).frames()
        assert early.answer is not None
        assert again[0] == early.answer.rows.tobytes()
        assert early.answer.cores is not None
        assert again[1] == early.answer.cores.tobytes()


def test_core_state_travels_only_when_wanted(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        client = the.welcomed(2)
        assert client.ask().cores is None
        assert client.ask(core=True).cores is not None


def test_memory_is_of_each_environment_and_ends_at_first(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The echo algorithm counts steps in its core and in its action."""
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        one, two = the.welcomed(3), the.welcomed(2)
        for _ in range(4):
            one.ask()
        two.ask()
        one.rows["first"] = [False, True, False]
        answer = one.ask(core=True)
        assert answer.cores is not None
        assert answer.cores[:, 0].tolist() == [4, 0, 4], "the state before this observation"
        assert answer.rows["action"].tolist() == [5, 1, 5]
        one.rows["first"] = False
        answer = one.ask(core=True)
        assert answer.cores is not None
        assert answer.cores[:, 0].tolist() == [5, 1, 5]
        assert two.ask().rows["action"].tolist() == [2, 2]


def test_a_new_session_never_sees_what_another_left_in_its_slots(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        old = the.welcomed(3)
        for _ in range(3):
            old.ask()
        old.close()
        wait_until(lambda: not the.broker.report()["clients"])
        new = the.welcomed(3)
        answer = new.ask(core=True)
        assert answer.rows["action"].tolist() == [1, 1, 1]
        assert answer.cores is not None
        assert not answer.cores.any()
        assert the.broker._sessions._ranges.used == 3, "the slots are used again"


def test_goodbye_frees_the_session(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        client = the.welcomed()
        client.bye()
        wait_until(lambda: not the.broker.report()["clients"])


def test_weights_change_between_batches_and_the_answer_tells_which_were_used(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        client = the.welcomed(2)
        seen = [client.ask()]
        for version in (2, 3, 5, 8):
            the.learner.publish(version)
            seen += [client.ask() for _ in range(20)]
        wait_until(lambda: seen.append(client.ask()) or seen[-1].version == 8)
        versions = [answer.version for answer in seen]
        assert versions == sorted(versions), "they never go backwards"
        assert [answer.rows["value"].tolist() for answer in seen] == [[version] * 2 for version in versions]


def kinds_until_bye(client: Client) -> list[Kind]:
    kinds: list[Kind] = []

    def goodbye() -> bool:
        message = client.port.receive()
        kinds.extend([message.header.kind] if message else [])
        return Kind.BYE in kinds

    wait_until(goodbye)
    return [kind for kind in kinds if kind is not Kind.WELCOME]  # one may come twice


def test_stopping_answers_what_was_asked_and_says_goodbye(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path, max_batch_delay_s=10.0) as the:
        asking, silent = the.welcomed(2), the.welcomed(1)
        asking.request()
        asking.turn()
        wait_until(lambda: len(the.broker._batcher))
        the.broker.stop()
        assert kinds_until_bye(asking) == [Kind.ACT, Kind.BYE]
        assert Kind.ACT not in kinds_until_bye(silent)


def test_the_page_counts_what_was_inferred(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage(context, monkeypatch, endpoint, tmp_path) as the:
        client = the.welcomed(4)
        for _ in range(5):
            client.ask()
        page = wait_until(lambda: the.broker.page if the.broker.page.get("batch_rows_mean") else None)
        assert page["batch_rows_mean"] == 4
        assert page["rows_per_s"] == pytest.approx(4 * page["requests_per_s"], abs=1)
        assert 0 <= page["busy_fraction"] <= 1
        assert (page["clients"], page["policy_version"], page["dropped"]) == (1, 1, 0)
