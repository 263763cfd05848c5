"""The hand-out to an adversary: auxiliary records, oracle answers, rehearsals."""
