"""Where the doctor takes part: a command."""

from nightshift.producer.cli.command import Command

commands = [Command("Fleet", "nightshift.producer.doctor.commands:doctor")]
