"""Client ids and the keys that they belong to."""

from functools import partial

import msgpack
import pytest

from tests.build.errors import refused
from zerobeast.common.errors import RemoteProtocolError, VersionMismatch
from zerobeast.common.transport.subscriptions import MAX_IDS, Owners
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, pack_header, unpack_header


def test_a_client_id_belongs_to_the_first_key_that_uses_it_and_ever_new_ones_cost_a_key_its_own() -> None:
    owners = Owners()
    for sender in range(1, MAX_IDS + 3):
        owners.check(sender, "mine" if sender == 1 else "yours")
    owners.check(1, "mine")
    for sender, key in ((1, "yours"), (3, "mine")):
        with refused(kind=RemoteProtocolError, reason="sender"):
            owners.check(sender, key)
    owners.check(2, "mine")


def test_a_message_of_any_version_is_held_to_the_key_of_its_sender() -> None:
    owners, header = Owners(), Header(Kind.BYE, 1)
    mine, yours = (partial(owners.check, key=key) for key in ("mine", "yours"))
    assert unpack_header(pack_header(header), mine) == header
    newer = msgpack.packb([PROTOCOL_VERSION + 1, 1, 1])
    with pytest.raises(VersionMismatch):
        unpack_header(newer, mine)
    for data in (pack_header(header), newer):  # or the owner would be told that its version is wrong
        with refused(kind=RemoteProtocolError, reason="sender"):
            unpack_header(data, yours)
