"""Writes rows.jsonl: lines of receipts, one in fifty without an amount; fixed by the seed."""

import json
import random
from pathlib import Path

THINGS = ["two coffees", "a taxi to the station", "paper", "one night at the inn", "lunch for four"]


def main() -> None:
    """Writes the file beside this one."""
    chance = random.Random(5)
    with (Path(__file__).parent / "rows.jsonl").open("w") as out:
        for number in range(600):
            what = ", ".join(chance.choices(THINGS, k=chance.randint(1, 5)))
            amount = f"{chance.randint(2, 90)}.{chance.randint(0, 99):02} EUR"
            text = f"{what}: {'on the house' if number % 50 == 17 else amount}"
            out.write(json.dumps({"id": f"r-{number:03}", "text": text}) + "\n")


if __name__ == "__main__":
    main()
