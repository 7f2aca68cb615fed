"""A fleet under faults by a seeded schedule, and the proof from its logs that nothing went wrong: `make chaos`."""
