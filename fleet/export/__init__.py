"""What a user ships: a tuned model as one archive, made here, and checked on the device that will serve it."""
