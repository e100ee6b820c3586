"""Why a job moves or stands: facts of the ledger, and one pure function over them."""
