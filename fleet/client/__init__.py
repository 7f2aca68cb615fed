"""Client of a fleet: leases from the tracker, work on devices at their agents. See `fleet.connect`, `fleet.aio`."""
