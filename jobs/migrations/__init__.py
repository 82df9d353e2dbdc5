"""The history of the store's schema, as Alembic revisions.

A new revision: change `jobs/tables.py`, run this in the repository, read what it wrote, and set `HEAD` to it:

    alembic -c jobs/migrations/alembic.ini revision --autogenerate -m "what changes"
"""

HEAD = "0004"
"""The newest revision; a test compares it with the files."""
