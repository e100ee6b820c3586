"""Files on local disk and in object stores: list, read, write whole, move, delete."""
