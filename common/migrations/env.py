"""Alembic's entry: runs inside the connection that common/ledger/schema.py hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="schema_version")
with context.begin_transaction():
    context.run_migrations()
