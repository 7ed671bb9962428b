"""Client ids and the keys that they belong to."""

from functools import partial

import msgpack
import pytest

from zerobeast.common.errors import RemoteProtocolError, VersionMismatch
from zerobeast.common.transport.subscriptions import MAX_IDS, Owners
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, pack_header, unpack_header


def test_a_client_id_belongs_to_the_first_key_that_uses_it_and_ever_new_ones_cost_a_key_its_own() -> None:
    owners = Owners()
    for sender in (1, *range(2, MAX_IDS + 3)):
        owners.check(sender, "mine" if sender == 1 else "yours")
    owners.check(1, "mine")
    for sender, key in ((1, "yours"), (3, "mine")):
        with pytest.raises(RemoteProtocolError) as caught:
            owners.check(sender, key)
        assert caught.value.reason == "sender"
    owners.check(2, "mine")


def test_a_message_of_any_version_is_held_to_the_key_of_its_sender() -> None:
    owners = Owners()
    header = Header(Kind.BYE, 1)
    assert unpack_header(pack_header(header), partial(owners.check, key="mine")) == header
    newer = msgpack.packb([PROTOCOL_VERSION + 1, 1, 1])
    with pytest.raises(VersionMismatch):
        unpack_header(newer, partial(owners.check, key="mine"))
    for data in (pack_header(header), newer):
        with pytest.raises(RemoteProtocolError) as caught:
            unpack_header(data, partial(owners.check, key="yours"))
        assert caught.value.reason == "sender", "or the owner would be told that its version is wrong"
