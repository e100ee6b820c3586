"""`python -m nightshift.producer.cli`: the command without its console script."""

from nightshift.producer.cli.app import main

main()
