"""The shape of what each command prints with --json: the reference is made from this, a test holds it to the commands.

Every object also has "schema", the version of all of these; `fleet.cli.json_out` has the rules that they share.
"""

from __future__ import annotations

from fleet.cli.json_schema import of_fleets as fleets
from fleet.cli.json_schema import of_work as work

BY_COMMAND: dict[str, type] = {
    "acquire": fleets.Acquired,
    "agent bundle": fleets.Bundle,
    "agent deploy": fleets.Deployed,
    "agent join": fleets.Joined,
    "audit": fleets.Audit,
    "build": work.Build,
    "builder list": work.Builders,
    "config show": fleets.Configuration,
    "devices reset-epochs": fleets.Epoch,
    "devices show": fleets.DeviceInFull,
    "devices": fleets.Devices,
    "doctor": fleets.Doctor,
    "explain": work.Explain,
    "export": work.Export,
    "jobs list": work.Jobs,
    "jobs show": work.JobSummary,
    "jobs submit": work.JobData,
    "jobs watch": work.Reports,
    "leases revoke": fleets.Leases,
    "leases": fleets.Leases,
    "library best": work.Best,
    "library export": work.Exported,
    "library import": work.Imported,
    "library migrate": work.Migrated,
    "library prune": work.Pruned,
    "library snapshots": work.Snapshots,
    "login": fleets.Joined,
    "optimizer list": work.Optimizers,
    "profile": work.Profile,
    "program": work.Program,
    "report": work.Report,
    "request cancel": fleets.Cancelled,
    "request list": fleets.Requests,
    "run": work.Run,
    "serve-check": work.ServeCheck,
    "status": fleets.Status,
    "targets show": fleets.Board,
    "targets": fleets.Targets,
    "time": work.Time,
    "tracker fsck": fleets.Journal,
    "tracker members": fleets.Members,
    "tracker revoke": fleets.Revocation,
    "tracker token create": fleets.NewToken,
    "tracker token revoke": fleets.RevokedToken,
    "tracker token list": fleets.Tokens,
    "tracker unbind": fleets.Unbound,
    "tune": work.Tune,
}
"""What each command prints."""
