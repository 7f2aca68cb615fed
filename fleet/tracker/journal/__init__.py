"""The tracker's memory across restarts: one SQLite file with the newest version of every entry.

`file` keeps it, `checking` tells whether it is whole, `copy` keeps a good copy beside it and restores it, `mark` notes
outside of it how far it came, `entries` says what an entry looks like.
"""
