"""Packets that never arrive, which needs a network of our own: a Linux namespace, root, and iptables.

The proxy between client and server is then the kernel's, with its retransmissions and time-outs.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial

from zerobeast_tools.chaos.network_faults import NetworkFault
from zerobeast_tools.chaos.proxy import Proxy

INSIDE_FLAG = "--inside"  #: flag of a command that runs in its own network
SHARE = 0.01
HOLE_S, SLOW_S = 30.0, 10.0


def explain_missing() -> str:
    """Why packets cannot be dropped on this machine; empty if they can."""
    for tool in ("unshare", "ip", "iptables"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    command = _unshare_command([_tool("iptables"), *_rule([1], SHARE)])
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return (tried.stderr.strip().splitlines() or ["no"])[0] if tried.returncode else ""


def enter_namespace(command: Sequence[str]) -> None:
    """Replace this process by the command in a network of its own, which has nothing but a loopback."""
    argv = _unshare_command([*command, INSIDE_FLAG])
    os.execv(argv[0], argv)  # noqa: S606 - of our own making


def list_faults() -> list[NetworkFault]:
    """See `zerobeast_tools.chaos.network_faults.list_faults`."""
    return [
        NetworkFault(f"{SHARE:.0%} of packets lost", SLOW_S, partial(_drop, share=SHARE), _stop, slows=True),
        NetworkFault(f"all packets lost for {HOLE_S:g} s", HOLE_S, partial(_drop, share=1.0), _stop),
    ]


def _drop(proxy: Proxy, share: float) -> None:
    """Lose this share of all packets between clients and the proxy."""
    subprocess.run([_tool("iptables"), *_rule(proxy.ports, share)], check=True)


def _stop(_proxy: Proxy) -> None:
    subprocess.run([_tool("iptables"), "-F", "INPUT"], check=True)


def _rule(ports: Sequence[int], share: float) -> list[str]:
    which = ["-p", "tcp", "-m", "multiport", "--ports", ",".join(map(str, ports))]
    chance = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
    return ["-A", "INPUT", *which, *(chance if share < 1 else []), "-j", "DROP"]


def _unshare_command(command: Sequence[str]) -> list[str]:
    return [_tool("unshare"), "--net", _tool("sh"), "-c", 'ip link set lo up && exec "$@"', "sh", *command]


def _tool(name: str) -> str:
    return shutil.which(name) or name
