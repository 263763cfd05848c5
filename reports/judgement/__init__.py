"""The judgement of a result: levels, what larger views inherit, severities and remedies."""
