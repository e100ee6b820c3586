"""What tables offer the core, see `producer/wings.py`."""

check_spec = "nightshift.producer.tables.checks:check_spec"
check_job = "nightshift.producer.tables.checks:check_job"
before_close = "nightshift.producer.tables.commit:commit_job"
before_retry = "nightshift.producer.tables.checks:check_retry"
files_in_use = "nightshift.producer.tables.keep:files_in_use"
duties = "nightshift.producer.tables.duties:duties"
input_table = "nightshift.producer.tables.input.opening:open_table"
