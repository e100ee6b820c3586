"""Where drafts take part: a command, and a word on specs that nobody has filled in."""

from nightshift.producer.cli.command import Command

commands = [Command("Run", "nightshift.producer.draft.commands:init", before="run")]
check_spec = "nightshift.producer.draft.to_fill_in:check_spec"
check_job = "nightshift.producer.draft.to_fill_in:check_job"
