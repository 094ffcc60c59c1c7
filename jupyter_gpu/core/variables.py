"""The names of the environment variables that a lease sets or reads; nothing else, to be cheap."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
LEASE = "JUPYTER_GPU_LEASE"
LEASE_FD = "JUPYTER_GPU_LEASE_FD"
NOTICE = "JUPYTER_GPU_NOTICE"
# The pid of the server whose provisioner has decided for the process it starts.
PROVISIONED = "JUPYTER_GPU_PROVISIONED"
