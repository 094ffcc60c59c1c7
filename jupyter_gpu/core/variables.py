"""The names of the environment variables that a lease sets or reads; nothing else, to be cheap."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
LEASE = "JUPYTER_GPU_LEASE"
LEASE_FD = "JUPYTER_GPU_LEASE_FD"
NOTICE = "JUPYTER_GPU_NOTICE"
# The pid of the server whose provisioner has decided for the process it starts.
PROVISIONED = "JUPYTER_GPU_PROVISIONED"
# The pid of the server whose provisioner has started this kernel, and reads a request for other
# devices when it restarts it; the word after it says that a kernel which ends is restarted.
STARTER = "JUPYTER_GPU_STARTER"
STARTS_AGAIN = "restarts"
# Values of CUDA_VISIBLE_DEVICES that the pool was cut down to when the kernel started, as JSON.
POOL = "JUPYTER_GPU_POOL"
# Set beside a notice that the person must be told at once.
ANNOUNCE = "JUPYTER_GPU_ANNOUNCE"
# The variables that cap a share, each with the value that it had before, as JSON.
CAPS = "JUPYTER_GPU_CAPS"
# Seconds after which a kernel that does nothing is told so.
IDLE_WARNING = "JUPYTER_GPU_IDLE_WARNING"
