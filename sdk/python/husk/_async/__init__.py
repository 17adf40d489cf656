"""The SDK in its asyncio form, from which the blocking one in husk/_sync is made (see generate.py)."""
