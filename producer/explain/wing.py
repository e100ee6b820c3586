"""Where explanations take part: a command."""

from nightshift.producer.cli.command import Command

commands = [Command("Look", "nightshift.producer.explain.commands:explain", before="watch")]
