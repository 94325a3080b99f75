"""One service a host: the devices of many images in one FUSE mount, a control socket, and the client of that socket."""
