"""What stands behind `locks["alias"]`: lock services in terms of leases."""
