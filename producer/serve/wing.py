"""Where the HTTP API takes part: commands, duties of reapers for API batches, retries of their jobs, bounds
of what watched inputs of tenants add, and pages beside a run.
"""

from nightshift.producer.cli.command import Command

commands = [
    Command("Look", "nightshift.producer.serve.commands:console_", before="top"),
    Command("Fleet", "nightshift.producer.serve.commands:serve", before="alive"),
    Command("Fleet", "nightshift.producer.serve.commands:key", name="key"),
    Command("Fleet", "nightshift.producer.serve.commands:tenant", name="tenant"),
]
duties = "nightshift.producer.serve.api_batches.duties:duties"
run_again = "nightshift.producer.serve.api_batches.run_again:run_again"
growing = "nightshift.producer.serve.submitting:growing"
pages = "nightshift.producer.serve.commands:pages"
