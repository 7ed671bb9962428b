"""The whole broker over real sockets: every client gets exactly its own answers."""

import random
import time
from itertools import count

import pytest

from tests.build.brokers import ECHO_POLICY, Client, OpenStage, Stage
from tests.helpers import wait_until
from zerobeast.common.wire.messages import Kind
from zerobeast.common.wire.stream import Reply
from zerobeast.services.broker import sessions


def hears_of_work(client: Client) -> None:
    """Repeat a request that has no answer yet until the broker replies with a sign of life."""
    asked = time.monotonic()
    wait_until(lambda: client.port.send(*client.message()) and client.turn() and client.stream.heard_at > asked)


def test_every_client_gets_exactly_its_own_rows(endpoint: str, open_stage: OpenStage) -> None:
    clients_in_all, requests = 32, 30
    the = open_stage(endpoint=endpoint, max_batch_rows=24, max_batch_delay_s=0.001)
    clients = [the.client(n) for n in random.Random(0).choices(range(1, 5), k=clients_in_all)]
    answers = dict.fromkeys(range(clients_in_all), 0)

    def turn(number: int, client: Client) -> None:
        if client.turn() is Reply.ANSWER:
            assert client.answer.rows["logits"].tolist() == (client.rows["obs"] + 1).tolist()
            assert client.answer.rows["action"].tolist() == [answers[number] + 1] * client.n
            answers[number] += 1
        if client.stream.open and not client.stream.waiting and answers[number] < requests:
            client.rows["obs"] = [[number, answers[number], row] for row in range(client.n)]
            client.request()

    def all_done() -> bool:
        for number, client in enumerate(clients):
            turn(number, client)
        return min(answers.values()) == requests

    wait_until(all_done, timeout_s=120)
    assert all(client.turn() is None for client in clients), "no client gets anything twice"
    assert the.broker.report()["refused"] == 0
    batches = [step.first.shape[1] for step in the.algorithms[0].seen[1:]]
    assert sum(batches) == sum(requests * client.n for client in clients)
    assert max(batches) <= 24
    assert len(batches) < clients_in_all * requests, "requests share batches"


def test_brokers_draw_by_the_seed_of_the_run_their_number_and_where_the_run_goes_on(
    ipc: str, open_stage: OpenStage
) -> None:
    def drawn_by(version: int = 0, seed: int = 1, index: int = 0) -> set[int]:
        the = open_stage(endpoint=f"{ipc}{next(numbers)}", versions=(version,), seed=seed, index=index)
        client = the.welcomed()
        client.ask()
        the.learner.publish(version + 1)
        wait_until(lambda: (client.ask(), the.broker.report()["policy_version"] > version)[1])
        client.ask()
        return set(the.algorithms[0].seeds[1:])  # the first is a trial

    numbers = count()
    assert drawn_by() == drawn_by() == {1}, "later versions change nothing"
    others = [drawn_by(version=5), drawn_by(version=6), drawn_by(seed=2), drawn_by(index=1), drawn_by(seed=2, index=1)]
    assert others[2] == {2}, "the first broker of a run draws by the seed of the run"
    assert len(set.union({1}, *others)) == 6


def test_clients_get_welcome_at_once_and_answers_once_there_are_weights(open_stage: OpenStage) -> None:
    the = open_stage(versions=(), max_batch_rows=4)
    clients = [the.client(n) for n in (2, 1, 3)]
    for client in clients:
        client.until(Reply.WELCOME)
        assert client.stream.terms == {"policy": ECHO_POLICY.to_wire()}
        client.request()
    for client in clients:
        hears_of_work(client)
    assert len(the.broker.batcher) == 2, "that is what fits; who has to wait is told, and nothing is computed"
    assert the.broker.running is None
    the.learner.publish(7)
    for client in clients:
        client.until(Reply.ANSWER)
        assert client.answer.version == 7


def test_each_environment_has_its_own_memory_which_ends_at_first(the: Stage) -> None:
    """The echo algorithm counts steps in its core and in its action."""
    one, two = the.welcomed(3), the.welcomed(2)
    for _ in range(4):
        assert one.ask().cores is None, "the state travels only when it is wanted"
    two.ask()
    one.rows["first"] = [False, True, False]
    answer = one.ask(core=True)
    assert answer.cores[:, 0].tolist() == [4, 0, 4], "the state before this observation"
    assert answer.rows["action"].tolist() == [5, 1, 5]
    one.rows["first"] = False
    answer = one.ask(core=True)
    assert answer.cores[:, 0].tolist() == [5, 1, 5]
    assert two.ask().rows["action"].tolist() == [2, 2]


def test_a_new_session_never_gets_what_another_left_in_its_slots(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SLOTS", 3)  # so that they are used again
    the = open_stage()
    old = the.welcomed(3)
    for _ in range(3):
        old.ask()
    old.close()
    wait_until(lambda: not the.broker.report()["clients"])
    new = the.welcomed(3)
    answer = new.ask(core=True)
    assert answer.rows["action"].tolist() == [1, 1, 1]
    assert not answer.cores.any()


def test_weights_change_between_batches_and_the_answer_names_those_used(the: Stage) -> None:
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
    return [kind for kind in kinds if kind not in (Kind.WELCOME, Kind.HERE)]  # answers to repeated messages


@pytest.mark.parametrize(("versions", "kinds"), [((1,), [Kind.ACT, Kind.BYE]), ((), [Kind.BYE])])
def test_stopping_answers_what_was_asked_if_there_are_weights_and_sends_bye(
    open_stage: OpenStage, versions: tuple[int, ...], kinds: list[Kind]
) -> None:
    the = open_stage(versions=versions, max_batch_delay_s=10.0)
    asking, silent = clients = the.client(2), the.client(1)
    for client in clients:
        client.until(Reply.WELCOME)
    asking.request()
    version = max(versions, default=-1)
    wait_until(lambda: (asking.turn(), the.broker.report()["policy_version"] == version)[1])
    wait_until(lambda: len(the.broker.batcher))
    the.broker.stop()
    assert kinds_until_bye(asking) == kinds
    assert Kind.ACT not in kinds_until_bye(silent)


def test_the_page_counts_what_was_inferred(the: Stage) -> None:
    client = the.welcomed(4)
    for _ in range(5):
        client.ask()
    page = wait_until(lambda: the.broker.page if the.broker.page.get("batch_rows_mean") else None)
    assert page["batch_rows_mean"] == 4
    assert page["rows_per_s"] == pytest.approx(4 * page["requests_per_s"], abs=1)
    assert 0 <= page["busy_fraction"] <= 1
    assert (page["clients"], page["policy_version"], page["dropped"]) == (1, 1, 0)
