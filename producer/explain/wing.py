"""What the explanations contribute: a command, and the standings of jobs."""

from nightshift.producer.cli.command import Command

commands = [Command("Look", "nightshift.producer.explain.commands:explain", before="watch")]
standings = "nightshift.producer.explain.standings:of"
