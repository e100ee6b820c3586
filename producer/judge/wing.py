"""Where the judge takes part: a command."""

from nightshift.producer.cli.command import Command

commands = [Command("Run", "nightshift.producer.judge.commands:judge")]
