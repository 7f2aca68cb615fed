"""Client of a fleet: acquires leases from the tracker and uses devices through their agents. See `fleet.connect`,
`fleet.aio`.
"""
