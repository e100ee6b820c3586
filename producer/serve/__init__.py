"""`nightshift serve`: the OpenAI Batch API at `/v1`, jobs over HTTP at `/api`. Only this room speaks HTTP."""
