"""The users and groups of an image, with lines that are damaged."""

PASSWD = b"""# a comment
root:x:0:0:root:/root:/bin/bash
ann:x:1000:100:Ann,,,:/home/ann:/bin/sh
short:x:7
+nis::::::
bad:x:number:1:::
1001:x:55:56:a name of digits:/home/digits:/bin/sh
last:x:4294967294:1::/:
too:x:4294967295:1::/:
"""
GROUP = b"root:x:0:\nusers:x:100:bob\nvideo:x:44:bob,ann\naudio:x:29:ann\nempty:x:9\n"
