"""Small federations as people begin with a framework: their networks, data and local training, without fdaudit."""
