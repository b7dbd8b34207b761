"""The commands of `infonce`, one module each: `add` describes it to the parser and names what runs.

Exit codes: 0 where all is right, 1 where something failed, 2 where it cannot run as it was called.
"""
