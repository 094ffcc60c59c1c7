"""tf.config of the stand-in."""

import standin_driver

_initialised = False


def list_physical_devices(kind=None):
    standin_driver.initialise()
    return [f"/physical_device:GPU:{n}" for n in range(standin_driver.count())]


def list_logical_devices(kind=None):
    global _initialised
    _initialised = True
    return list_physical_devices(kind)


def set_logical_device_configuration(device, logical_devices):
    if _initialised:
        raise RuntimeError("Virtual devices cannot be modified after being initialized")


def set_visible_devices(devices, device_type=None):
    if _initialised:
        raise RuntimeError("Visible devices cannot be modified after being initialized")
