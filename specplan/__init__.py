"""specplan: how many draft tokens to verify, on this device, under this traffic, and what that is worth."""

__version__ = "0.1.0"
