"""Networks of a test's own: one in the middle, and others that reach it and each other through it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_HOLD = "echo up && exec sleep 600"
_BRIDGE = "ip link add hub type bridge && ip addr add 10.77.0.1/24 dev hub && ip link set hub up"
_MIDDLE = f"ip link set lo up && {_BRIDGE} && {_HOLD}"
_OUTER = f"ip link set lo up && {_HOLD}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network namespace, which stands for a machine."""

    pid: int
    """Of the process that keeps it."""

    address: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs there."""
        return ["nsenter", "--target", str(self.pid), "--user", "--net", "--preserve-credentials", *words]


@contextmanager
def joined_networks(count: int) -> Iterator[list[Network]]:
    """Make this many networks; the first is in the middle."""
    with ExitStack() as stack:
        hub_words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", _MIDDLE]
        hub = Network(pid=_hold(stack, hub_words), address="10.77.0.1")
        networks = [hub]
        for number in range(2, count + 1):
            pid = _hold(stack, hub.command("unshare", "--net", "sh", "-c", _OUTER))
            networks.append(Network(pid=pid, address=f"10.77.0.{number}"))
            link = f"to{number}"
            _run(hub, f"ip link add {link} type veth peer name eth0 netns {pid} && ip link set {link} master hub up")
            _run(networks[-1], f"ip addr add 10.77.0.{number}/24 dev eth0 && ip link set eth0 up")
        yield networks


@contextmanager
def hidden_network(translator: Network) -> Iterator[Network]:
    """Make a network behind an address translator: it reaches the others, and none of them reaches it."""
    with ExitStack() as stack:
        pid = _hold(stack, translator.command("unshare", "--net", "sh", "-c", _OUTER))
        hidden = Network(pid=pid, address="192.168.77.2")
        _run(translator, f"ip link add inside type veth peer name eth0 netns {pid}")
        _run(translator, "ip addr add 192.168.77.1/24 dev inside && ip link set inside up")
        _run(translator, "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _run(translator, "iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE")
        _run(hidden, f"ip addr add {hidden.address}/24 dev eth0 && ip link set eth0 up")
        _run(hidden, "ip route add default via 192.168.77.1")
        yield hidden


def _hold(stack: ExitStack, words: Sequence[str]) -> int:
    """Start the process that keeps a network; return its id."""
    holder = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    stack.callback(holder.kill)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n", "needs user namespaces, and the package iproute2"
    return holder.pid


def _run(network: Network, script: str) -> None:
    subprocess.run(network.command("sh", "-c", script), check=True)
