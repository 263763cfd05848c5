"""What an adversary is handed: auxiliary records, answers, rehearsals."""
