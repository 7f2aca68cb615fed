"""Griffe reads sources: this extension fills in the signatures and docstrings that `fleet.client.blocking` copies."""

from __future__ import annotations

import griffe

_TWINS = {
    "client.sync.Fleet": "client.aio.Fleet",
    "client.sync_device.Device": "client.device.Device",
    "client.sync_device.RemoteModule": "client.remote.RemoteModule",
}


class BlockingMethods(griffe.Extension):
    """Documents blocking methods like their asynchronous twins."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Complete the classes once the whole package is read."""
        for name, twin_name in _TWINS.items() if pkg.name == "fleet" else ():
            functions = pkg[twin_name].functions
            for member in [one for one in pkg[name].members.values() if one.name in functions and not one.docstring]:
                twin = functions[member.name]
                if member.is_attribute:
                    method = griffe.Function(member.name, parameters=twin.parameters, returns=twin.returns)
                    method.lineno = member.lineno
                    pkg[name].set_member(member.name, method)
                pkg[name][member.name].docstring = twin.docstring
