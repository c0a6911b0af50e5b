"""`python -m spillway`: the program spillway."""

from spillway._program import main

main()
