"""Schemas of the commands' output with --json. The reference is generated from them, and a test compares the commands'
output.

Every object also has "schema", the version of all of these; `fleet.cli.json_out` has the rules that they share.
"""

from __future__ import annotations

from fleet.cli.json_schema import of_errors as errors
from fleet.cli.json_schema import of_fleets as fleets
from fleet.cli.json_schema import of_jobs as jobs
from fleet.cli.json_schema import of_library as library
from fleet.cli.json_schema import of_models as models
from fleet.cli.json_schema import of_packs as packs

MODULES = (errors, fleets, models, jobs, library, packs)

BY_COMMAND: dict[str, type] = {
    "acquire": fleets.Acquired,
    "agent bundle": fleets.Bundle,
    "agent deploy": fleets.Deployed,
    "agent approve": fleets.MemberFacts,
    "agent join": fleets.Joined,
    "agent pending": fleets.PendingAgents,
    "agent refuse": fleets.PendingAgentFacts,
    "audit": fleets.Audit,
    "book": fleets.Bookings,
    "bookings cancel": fleets.Bookings,
    "bookings": fleets.Bookings,
    "build": models.Build,
    "builder list": jobs.Builders,
    "config show": fleets.Configuration,
    "devices drain": fleets.Marked,
    "devices maintain": fleets.Marked,
    "devices quarantine": fleets.Marked,
    "devices reset-epochs": fleets.Epoch,
    "devices resume": fleets.Marked,
    "devices retire": fleets.Marked,
    "devices show": fleets.DeviceInFull,
    "devices": fleets.Devices,
    "discover": fleets.Discovered,
    "doctor": fleets.Doctor,
    "explain": models.Explain,
    "export": models.Export,
    "gateway key create": fleets.NewGatewayKey,
    "gateway key list": fleets.GatewayKeys,
    "gateway key revoke": fleets.GatewayKeyFacts,
    "jobs list": jobs.Jobs,
    "jobs show": jobs.JobSummary,
    "jobs submit": jobs.JobData,
    "jobs watch": models.Reports,
    "jobs why": jobs.Plan,
    "leases revoke": fleets.Leases,
    "leases": fleets.Leases,
    "library best": library.Best,
    "library coverage": library.LibraryCoverage,
    "library export": library.Exported,
    "library import": library.Imported,
    "library migrate": library.Migrated,
    "library prune": library.Pruned,
    "library refresh": library.Refreshed,
    "library snapshots": library.Snapshots,
    "library stale": library.Stale,
    "login": fleets.Joined,
    "optimizer list": jobs.Optimizers,
    "pack add": packs.Packs,
    "pack list": packs.Packs,
    "pack make": packs.MadePack,
    "pack remove": packs.Packs,
    "pack show": packs.FoundPack,
    "pack update": packs.Packs,
    "pack verify": packs.Packs,
    "poison forget": fleets.Poison,
    "poison list": fleets.Poison,
    "profile": models.Profile,
    "program": models.Program,
    "report": jobs.Report,
    "report --library": library.LibraryReport,
    "request cancel": fleets.Cancelled,
    "request list": fleets.Requests,
    "request why": fleets.RequestInFull,
    "run": models.Run,
    "serve-check": models.ServeCheck,
    "status": fleets.Status,
    "targets show": fleets.Board,
    "targets": fleets.Targets,
    "time": models.Time,
    "tracker backup": fleets.Backup,
    "tracker fsck": fleets.Journal,
    "tracker join": fleets.Joined,
    "tracker members": fleets.Members,
    "tracker reload": fleets.Reloaded,
    "tracker restore": fleets.Backup,
    "tracker revoke": fleets.Revocation,
    "tracker token create": fleets.NewToken,
    "tracker token revoke": fleets.RevokedToken,
    "tracker token list": fleets.Tokens,
    "tracker unbind": fleets.Unbound,
    "tune": models.Tune,
    "usage": fleets.Usage,
    "workloads extract": models.ExtractedWorkloads,
    "workloads mutate": models.MutatedWorkloads,
}
"""Output of each command."""
