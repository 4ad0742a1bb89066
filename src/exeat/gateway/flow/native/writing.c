/* What a connection is to send, and cannot yet. */
#include "streams.h"

#include <errno.h>
#include <sys/uio.h>

#define MOST_PIECES 64
#define PIECE_BYTES (4 * 1024)

static void drop_first(Stream *stream)
{
    Piece *piece = stream->queue;
    stream->queue = piece->next;
    if (stream->queue == NULL)
        stream->queue_end = NULL;
    Py_DECREF(piece->bytes);
    PyMem_Free(piece);
}

void stream_drop_queue(Stream *stream)
{
    while (stream->queue != NULL)
        drop_first(stream);
    stream->queued = 0;
}

static void watch_out(Stream *stream)
{
    if (stream->watches_out)
        return;
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET, .data.ptr = stream};
    if (epoll_ctl(stream->poller->epoll, EPOLL_CTL_MOD, stream->descriptor, &event) < 0)
        stream_fail(stream, errno);
    else
        stream->watches_out = true;
}

static void has_queued(Stream *stream, Py_ssize_t size)
{
    stream->queued += size;
    watch_out(stream);
    if (stream->queued > stream->high && !stream->has_paused && !stream->is_over) {
        stream->has_paused = true;
        stream_tell(stream, names.pause_writing, NULL);
    }
}

static void enqueue(Stream *stream, PyObject *bytes, Py_ssize_t from, Py_ssize_t to)
{
    Piece *piece = bytes == NULL ? NULL : PyMem_Malloc(sizeof(Piece));
    if (piece == NULL) {
        PyErr_NoMemory();
        poller_report(stream);
        return;
    }
    *piece = (Piece){.bytes = Py_NewRef(bytes), .from = from, .to = to};
    if (stream->queue_end != NULL)
        stream->queue_end->next = piece;
    else
        stream->queue = piece;
    stream->queue_end = piece;
    has_queued(stream, to - from);
}

/* Small pieces are put together: one for each byte would take forty times as much memory as `queued` says. */
static void enqueue_copy(Stream *stream, const char *data, Py_ssize_t size)
{
    Piece *last = stream->queue_end;
    if (last != NULL && PyBytes_GET_SIZE(last->bytes) - last->to >= size) {
        memcpy(PyBytes_AS_STRING(last->bytes) + last->to, data, size);
        last->to += size;
        has_queued(stream, size);
        return;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size < PIECE_BYTES ? PIECE_BYTES : size);
    if (bytes != NULL)
        memcpy(PyBytes_AS_STRING(bytes), data, size);
    enqueue(stream, bytes, 0, size);
    Py_XDECREF(bytes);
}

/* `bytes`: the same data as an object, if there is one. */
void stream_send(Stream *stream, const char *data, Py_ssize_t size, PyObject *bytes)
{
    ssize_t sent = 0;
    if (stream->queue == NULL) {
        do
            sent = send(stream->descriptor, data, size, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent == size)
            return;
        if (sent < 0 && errno != EAGAIN) {
            stream_fail(stream, errno);
            return;
        }
        if (sent < 0)
            sent = 0;
    }
    if (bytes != NULL && size - sent >= PIECE_BYTES)
        enqueue(stream, bytes, sent, size);
    else
        enqueue_copy(stream, data + sent, size - sent);
}

/* As much of the queue as the kernel takes now. */
static void flush(Stream *stream)
{
    while (stream->queue != NULL) {
        struct iovec parts[MOST_PIECES];
        size_t count = 0;
        for (Piece *piece = stream->queue; piece != NULL && count < MOST_PIECES; piece = piece->next, count++) {
            parts[count].iov_base = PyBytes_AS_STRING(piece->bytes) + piece->from;
            parts[count].iov_len = piece->to - piece->from;
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t sent = sendmsg(stream->descriptor, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            if (errno != EAGAIN)
                stream_fail(stream, errno);
            return;
        }
        stream->queued -= sent;
        while (sent > 0) {
            Py_ssize_t left = stream->queue->to - stream->queue->from;
            if (sent < left) {
                stream->queue->from += sent;
                break;
            }
            sent -= left;
            drop_first(stream);
        }
    }
}

void stream_settle(Stream *stream)
{
    flush(stream);
    if (!stream->is_over && stream->has_paused && stream->queued <= stream->low) {
        stream->has_paused = false;
        stream_tell(stream, names.resume_writing, NULL); /* who may write again at once */
    }
    if (stream->queue != NULL || stream->is_over)
        return;
    if (stream->eof_wanted && !stream->eof_sent) {
        stream->eof_sent = true;
        shutdown(stream->descriptor, SHUT_WR); /* a peer that is gone already shows by itself */
    }
    if (stream->closing)
        stream_end(stream);
}
