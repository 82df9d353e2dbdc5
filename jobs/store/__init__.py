"""The job store: jobs, rounds and events on SQLite or PostgreSQL, and its migrations."""
