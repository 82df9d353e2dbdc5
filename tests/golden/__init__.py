"""The digests of every method, recorded once: a change that is to change no number is held against them."""
