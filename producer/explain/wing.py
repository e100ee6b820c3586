"""Where explanations take part: a command, a duty that tells where jobs stand, and who reads it."""

from nightshift.producer.cli.command import Command

commands = [Command("Look", "nightshift.producer.explain.commands:explain", before="watch")]
duties = "nightshift.producer.explain.tell:duties"
standings = "nightshift.producer.explain.standings:of"
