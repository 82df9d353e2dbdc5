"""The history of the store's schema, as Alembic revisions.

A new revision: change `jobs/store/tables.py`, run this in the repository, read what it wrote, and set `HEAD`
of `jobs.store.tables` to it:

    alembic -c jobs/store/migrations/alembic.ini revision --autogenerate -m "what changes"
"""
