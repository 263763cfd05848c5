"""FedGEN. Of fdaudit it imports `fdaudit.federation.kit` alone, as a protocol from outside would."""
