"""Makes the archive of a tuned model that a user ships, and checks it on the device that will serve it."""
