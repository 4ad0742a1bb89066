/* TCP streams for asyncio, with the interface of its transports. What belongs to which file:
 *
 *   module.c     what Python imports
 *   poller.c     one epoll for all streams of an owner: connecting, events, the end of a turn
 *   listener.c   accepting
 *   stream.c     one connection: its beginning, reading, handing on, its end
 *   writing.c    what it is to send
 *   transport.c  the same as Python sees it
 *
 * Nothing here looks at what passes. Descriptors are watched for edges: a stream remembers that there may be something
 * to read until a read has said that there is no more.
 */
#ifndef EXEAT_STREAMS_H
#define EXEAT_STREAMS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define READ_BYTES (64 * 1024) /* larger pieces of memory go back to the kernel each time: 3 times as long a turn in a flood */
#define WRITE_HIGH_BYTES (256 * 1024)
#define MOST_EVENTS 256

typedef struct Stream Stream;
typedef struct Listener Listener;

/* All that Python calls by name, made once. */
extern struct Names {
    PyObject *add_reader, *remove_reader, *call_soon, *create_future, *call_exception_handler;
    PyObject *connection_made, *data_received, *eof_received, *connection_lost, *pause_writing, *resume_writing;
    PyObject *get_buffer, *buffer_updated, *done, *set_result, *set_exception, *work, *tidy;
} names;

typedef struct Poller {
    PyObject_HEAD
    int epoll;             /* while there are users */
    int reserve;           /* a descriptor to give up when there are no more, so that a client can be told by a close */
    Py_ssize_t users;      /* streams and listeners; without any, the loop is let go of */
    unsigned turn;
    Py_ssize_t read;       /* bytes in this turn */
    bool python;           /* was called in this turn, so that it may have something to do */
    bool working;          /* what is due will be looked at before this turn ends */
    bool kicked;           /* the loop will call `tidy` */
    PyObject *loop;        /* while there are users */
    PyObject *tidy;        /* the bound method, while there are users */
    PyObject *fatal;       /* an exception that must end the loop: KeyboardInterrupt, SystemExit */
    Stream *streams;       /* all that are open: each is kept until it is lost */
    Stream *due, *due_end; /* those with something left to do; each is kept while it is in the list */
    Listener *listeners;   /* all that are open: each is kept until it is closed */
    Listener *closed;      /* in this turn: kept until its end */
    char *buffer;          /* READ_BYTES, filled and emptied within one callback */
} Poller;

struct Listener {
    PyObject_HEAD
    Listener *next; /* in poller->listeners, or poller->closed */
    int descriptor;        /* not ours: it belongs to the socket */
    PyObject *socket;      /* kept open by this */
    Poller *poller;
    PyObject *factory;     /* makes a protocol for each connection */
    struct sockaddr_storage address;
    bool is_wild;          /* bound to all addresses: which of them a connection came to is asked for each */
};

typedef struct Piece {
    struct Piece *next;
    PyObject *bytes;
    Py_ssize_t from, to; /* there is room behind `to` only in bytes that are known nowhere else */
} Piece;

struct Stream {
    PyObject_HEAD
    int descriptor;
    Poller *poller;
    Stream *previous, *next; /* in poller->streams */
    Stream *next_due;
    PyObject *protocol;
    PyObject *waiter; /* a future, while it connects */
    PyObject *error;  /* why it ends, if not in order */
    struct sockaddr_storage peer, listener;

    Piece *queue, *queue_end; /* written, and not sent yet */
    Py_ssize_t queued, high, low;

    Stream *target;           /* where what is read goes, without Python; kept */
    Py_ssize_t large_most;    /* this much in a row of large reads is for Python again */
    Py_ssize_t large;
    long long forwarded_in, forwarded_out; /* since they were last asked for */

    bool is_open;          /* in poller->streams */
    bool has_listener, listener_is_wild;
    bool connecting;
    bool watches_out;      /* epoll tells when it can be written to */
    bool is_due;
    bool has_paused;       /* the protocol was told to write no more */
    bool reading_paused;
    bool can_read;         /* and no read has said since that there is no more */
    unsigned read_turn;    /* the last in which something was read */
    bool is_thorough;      /* the end or urgent data is near: a short read does not say that there is no more */
    bool has_ended;        /* the peer sends no more */
    bool is_buffered;      /* the protocol has a buffer of its own to read into */
    bool eof_wanted, eof_sent;
    bool closing;          /* no more is read, and nothing new is written */
    bool is_over;          /* `connection_lost` is due */
    bool is_lost;          /* and was called */
};

extern PyTypeObject PollerType, ListenerType, StreamType;

/* poller.c */
int poller_begin_using(Poller *poller, PyObject *loop);
void poller_end_using(Poller *poller); /* if there are no users */
void poller_add_due(Stream *stream);
void poller_report(Stream *stream); /* an exception out of a callback: it is told, and ends the stream */
void poller_leave(Poller *poller);  /* one user less */

/* listener.c */
PyObject *poller_listen(Poller *poller, PyObject *args);
void listener_accept(Listener *listener);
void listener_close(Listener *listener);

/* stream.c */
Stream *stream_new(Poller *poller, int descriptor, PyObject *protocol);
int stream_register(Stream *stream, uint32_t events);
void stream_made(Stream *stream);
void stream_on_events(Stream *stream, uint32_t events);
void stream_do_due(Stream *stream);
void stream_end(Stream *stream);
void stream_fail(Stream *stream, int error);
bool stream_tell(Stream *stream, PyObject *name, PyObject *argument);
void stream_close(Stream *stream);
void stream_use(Stream *stream, PyObject *protocol);
void stream_read_no_more(Stream *stream);
void stream_drop(Stream *stream); /* without a word to anyone */
bool stream_may_read(Stream *stream);

/* writing.c */
void stream_send(Stream *stream, const char *data, Py_ssize_t size, PyObject *bytes);
void stream_settle(Stream *stream); /* what waits for the last written byte */
void stream_drop_queue(Stream *stream);

#endif
