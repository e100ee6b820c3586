"""Every object of a database's public schema, by name and kind, as Postgres describes it."""

from typing import Any

import psycopg

COLUMNS = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
           a.attidentity::text, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'S') AND a.attnum > 0
      AND NOT attisdropped ORDER BY 1, a.attnum
"""

OTHERS = {
    "kind": """
        SELECT relkind::text || ' ' || relname, coalesce(array_to_string(reloptions, ','), '')
        FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'S', 'p', 'm')""",
    "order": """
        SELECT c.relname, string_agg(a.attname, ',' ORDER BY a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v') AND a.attnum > 0
          AND NOT attisdropped GROUP BY 1""",
    "constraint": """
        SELECT conrelid::regclass::text || '.' || conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "trigger": """
        SELECT t.tgname || ' on ' || c.relname, pg_get_triggerdef(t.oid)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE NOT tgisinternal""",
    "function": """
        SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid)
        FROM pg_proc p WHERE pronamespace = 'public'::regnamespace""",
    "view": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
    "comment": """
        SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'S', 'i')
          AND obj_description(c.oid, 'pg_class') IS NOT NULL""",
    "fcomment": """
        SELECT p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc') FROM pg_proc p
        WHERE pronamespace = 'public'::regnamespace
          AND obj_description(p.oid, 'pg_proc') IS NOT NULL""",
}


def objects(url: str) -> dict[str, Any]:
    """Each object, and how Postgres describes it."""
    with psycopg.connect(url) as connection:

        def ask(question: str) -> list[Any]:
            return connection.execute(question.encode()).fetchall()

        found = {f"column {table}.{name}": facts for table, name, *facts in ask(COLUMNS)}
        for kind, question in OTHERS.items():
            found |= {f"{kind} {name}": said for name, said in ask(question)}
    return found
