"""The tests, as a package: shared parts are imported by their full name, `from tests.service.agent_bench import
Bench`.
"""
