"""`python -m fdaudit`."""

from fdaudit.cli import main

if __name__ == "__main__":
    main()
