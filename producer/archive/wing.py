"""Where the archive takes part: rows of jobs that were closed for long leave Postgres, and are read from their files."""

duties = "nightshift.producer.archive.retention:duties"
read_archived = "nightshift.producer.archive.reading:read_archived"
