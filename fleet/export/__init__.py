"""Exports a tuned model as an archive, and checks it on the device that will serve it."""
