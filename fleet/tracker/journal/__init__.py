"""The tracker's memory across restarts: one SQLite file with the newest version of every entry.

`file` writes it, `checking` verifies it, `copy` keeps a verified copy beside it and restores it, `mark` records its
last commit outside of it, `codec` converts entries to rows and back, `migrations` converts rows of older versions.
"""
