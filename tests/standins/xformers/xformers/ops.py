"""Makes a context on the first device at import."""

import standin_driver

standin_driver.make_context(0)
