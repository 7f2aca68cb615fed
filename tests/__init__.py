"""The tests, a package: what they share is imported by its full name, `from tests.service.agent_bench import Bench`."""
