"""Where tuning takes part: a command. Submits read what it keeps in the ledger, see `submit/auto_args.py`."""

from nightshift.producer.cli.command import Command

commands = [Command("Run", "nightshift.producer.tune.commands:tune")]
