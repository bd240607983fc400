"""Other people's houses: what fits the losses, calibrators and metrics into them.

A file may import its host at its top; nobody else imports such a file before it is needed, so calibseg needs no host.
"""
