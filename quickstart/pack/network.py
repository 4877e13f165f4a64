"""Refuse an early start on a machine whose network differs from the network that init sets up (pure).

In an early start, our init starts the application before systemd runs, and gives the first network card the address
that DHCP offers. A stock boot may set up the card in another way (with a bridge, a bond, a second address, further
routes). In this case, the application has another network in a stock boot than in an early start. The reference boot
shows which network a stock boot sets up. This module does not need to know whether ifupdown, networkd, netplan or a
script sets up this network.

This module does not check IPv6, because init does not give the card IPv6 addresses. The kernel and the network service
of the stock boot do this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network

from quickstart.errors import UnsupportedUnitError
from quickstart.model import Trace
from quickstart.model.started import Wired
from quickstart.parse.printable import brief

_EVERYWHERE = IPv4Network("0.0.0.0/0")


def refuse_other_network(traces: Sequence[Trace], unit: str) -> None:
    """Raise UnsupportedUnitError when a traced boot has set up any IPv4 network other than one card with one
    address and its routes.
    """
    for trace in traces:
        if why := next(_differences(trace.loaded.wired, trace.network.mac), None):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: in the reference boot, {why}, and init's network is that of DHCP alone",
                hint="let DHCP configure the network card in the image",
            )


def _differences(wired: Wired, mac: str) -> Iterator[str]:
    """The properties of the reference boot's network ``wired`` that DHCP alone would not have set up. Each property is
    a clause for an error message. ``mac`` is the MAC address that the virtual machine gave its card.
    """
    for card in wired.cards:
        if card.mac != mac:
            yield f"the network card {brief(card.name)} had the MAC address {brief(card.mac)}, which is not its own"
        if card.is_enslaved:
            yield f"the network card {brief(card.name)} was a port of another interface"
    cards = {card.name for card in wired.cards}
    of_cards = [route for route in wired.routes if route.interface in cards]
    if not of_cards:
        yield "no network card had an IPv4 address"
        return
    if len({route.interface for route in of_cards}) > 1:
        yield "several network cards had addresses"
    for route in wired.routes:
        if route.network == _EVERYWHERE and route.interface not in cards:
            yield f"the default route led through {brief(route.interface)}, which is not a network card"
    # DHCP gives one network, and routes to servers in it.
    own = max((route.network for route in of_cards if route.network != _EVERYWHERE), key=_size, default=None)
    if own is None:
        yield "the network card had no network"
        return
    for route in of_cards:
        inside = route.network == _EVERYWHERE or route.network.subnet_of(own)
        if not inside or (route.gateway and route.gateway not in own):
            yield f"the network card had a route to {route.network} beside its own network {own}"
    # An address outside may be that of an interface which the application or a container has made.
    for address in [address for address in wired.addresses if address in own][1:]:
        yield f"the network card had the further address {address}"


def _size(network: IPv4Network) -> int:
    return network.num_addresses
