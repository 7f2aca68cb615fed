"""Packs: the best records of a library as signed files that other users can add to theirs.

A pack is an OCI image layout. Nothing of one is used before its digests, its signature and each record are checked.
"""
