"""GPU leases for Jupyter kernels, and a truthful %gpu."""
