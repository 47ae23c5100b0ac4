"""The stores behind `locks["alias"]`: each grants, extends and releases leases."""
