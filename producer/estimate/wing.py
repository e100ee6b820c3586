"""Where estimates take part: a command, and pilots before a run."""

from nightshift.producer.cli.command import Command

commands = [Command("Run", "nightshift.producer.estimate.commands:estimate", before="submit")]
pilot = "nightshift.producer.estimate.pilot_place:before_job"
