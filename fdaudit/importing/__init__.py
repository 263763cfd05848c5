"""Import of federations that other systems ran: the record, its card and its truth become a run."""
