"""The executor harness: it runs inside a pool's container and calls tools, each call in a fresh process.

It runs with whatever Python the image has: no packages, and nothing newer than Python 3.9. In an image it is one file,
which `exeat.container.harness.shipped` makes of the modules here; they import whole modules of the standard library and
names of each other, and nothing else. `exeat.container.harness.protocol` describes the frames.

    harness          reads requests, hands each call to a pair of new processes, passes on what the call writes
      supervisor     adopts whatever the call leaves behind and ends all of it, then says how the tool ended
        worker       loads the tool's module, calls the function, writes one outcome into a pipe, exits
          ...        whatever the tool starts

One pair is made in advance and waits for its call: to fork takes a millisecond, and to touch what is shared with the
harness for the first time takes five.

The harness interprets nothing that a tool wrote. It counts bytes and passes them on. The three processes cannot be
dumped, traced or looked into through /proc, so the descriptors of the protocol are out of a tool's reach. A worker has
its own pipes and nothing else. If anything happens that should be impossible (a supervisor dies, a call's processes
cannot be ended), the harness exits, and with it the container: a sandbox is lost rather than trusted.
"""
