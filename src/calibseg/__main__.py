"""`python -m calibseg` is `calibseg`."""

from calibseg.cli import main

if __name__ == "__main__":
    main()
