"""`python -m fdaudit`."""

from fdaudit.cli.app import main

if __name__ == "__main__":
    main()
