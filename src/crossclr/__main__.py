"""`python -m crossclr` is the command `crossclr`."""

from crossclr.cli import main

if __name__ == "__main__":
    main()
