"""Where the archive takes part: rows of jobs that were closed for long leave Postgres, and come back."""

duties = "nightshift.producer.archive.retention:duties"
bring_back = "nightshift.producer.archive.come_back:bring_back"
archived_errors = "nightshift.producer.archive.come_back:archived_errors"
