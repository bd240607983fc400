"""Score tables and what follows from them: rankings, tests, intervals, recommendation. Never imports torch."""
