"""The certificate of clients that have not joined. Its private key is public on purpose.

gRPC's servers ask every client for a certificate or none. One port serves members and future members; the latter
present this. It proves nothing: it is of the role "stranger", which may only join, it signs nothing, and
it was signed by no fleet's authority. Agents do not accept it.
"""

from __future__ import annotations

KEY_PEM = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg3aSsf1z6arUQIKqF
3iZIT3dfGkLhbTHxiVLrQ28SFpehRANCAASwG/uYDoD0bZGboGZUGZplolNNC3X4
ImeT285GZtATZUN3/kLFGIBtoax7Ca+cS7NFzp/Dj97VsjkMPq0DqruO
-----END PRIVATE KEY-----
"""

CERTIFICATE_PEM = b"""\
-----BEGIN CERTIFICATE-----
MIIBvzCCAWWgAwIBAgIUOxOJDBV0aQ12FKzNuyDYlm7TSRIwCgYIKoZIzj0EAwIw
JjERMA8GA1UECwwIc3RyYW5nZXIxETAPBgNVBAMMCHN0cmFuZ2VyMCAXDTcwMDEw
MTAwMDAwMVoYDzk5OTkxMjMxMDAwMDAwWjAmMREwDwYDVQQLDAhzdHJhbmdlcjER
MA8GA1UEAwwIc3RyYW5nZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASwG/uY
DoD0bZGboGZUGZplolNNC3X4ImeT285GZtATZUN3/kLFGIBtoax7Ca+cS7NFzp/D
j97VsjkMPq0DqruOo28wbTAdBgNVHQ4EFgQU1eX4gN9RcvqMnrRVJyCgwvLSrq0w
DAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8EBAMCB4AwGQYDVR0RBBIwEIIOc3RyYW5n
ZXIuZmxlZXQwEwYDVR0lBAwwCgYIKwYBBQUHAwIwCgYIKoZIzj0EAwIDSAAwRQIg
H8jwMK0miItl4JKA+dxuE/9TC9rFpEGNiwkrJrrCFrECIQDVZh8gXViS8UNZqJkf
oKyE7/UlpR2KGWnkfFJAi5PDXg==
-----END CERTIFICATE-----
"""
