"""The SDK in its blocking form. Everything but _io.py is made from husk/_async by generate.py: edit it there."""
