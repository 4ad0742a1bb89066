/* One connection: its beginning, reading, handing on, its end. */
#include "streams.h"

#include <errno.h>
#include <unistd.h>

#define LARGE_BYTES (32 * 1024)

/* Call the protocol. What it raises is told, and ends the stream. */
bool stream_tell(Stream *stream, PyObject *name, PyObject *argument)
{
    stream->poller->python = true;
    PyObject *protocol = Py_NewRef(stream->protocol); /* which the call may replace */
    PyObject *given[2] = {protocol, argument};
    PyObject *result = PyObject_VectorcallMethod(name, given, argument == NULL ? 1 : 2, NULL);
    Py_DECREF(protocol);
    int is_true = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (is_true < 0)
        poller_report(stream);
    return is_true == 1;
}

static PyObject *make_os_error(int error)
{
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

void stream_fail(Stream *stream, int error)
{
    if (stream->is_over)
        return;
    Py_XSETREF(stream->error, make_os_error(error));
    stream_end(stream);
}

/* Beginning */

/* Takes the descriptor over, also where it fails. */
Stream *stream_new(Poller *poller, int descriptor, PyObject *protocol)
{
    Stream *stream = PyObject_GC_New(Stream, &StreamType);
    if (stream == NULL) {
        close(descriptor);
        return NULL;
    }
    memset((char *)stream + sizeof(PyObject), 0, sizeof(Stream) - sizeof(PyObject));
    stream->descriptor = descriptor;
    stream->high = WRITE_HIGH_BYTES;
    stream->low = WRITE_HIGH_BYTES / 4;
    stream->poller = (Poller *)Py_NewRef((PyObject *)poller);
    stream_use(stream, protocol);
    PyObject_GC_Track(stream);
    return stream;
}

void stream_use(Stream *stream, PyObject *protocol)
{
    Py_XSETREF(stream->protocol, Py_NewRef(protocol));
    stream->is_buffered = PyObject_HasAttr(protocol, names.get_buffer);
}

/* From here on the poller keeps it, until it is lost. */
int stream_register(Stream *stream, uint32_t events)
{
    Poller *poller = stream->poller;
    struct epoll_event event = {.events = events | EPOLLRDHUP | EPOLLPRI | EPOLLET, .data.ptr = stream};
    if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, stream->descriptor, &event) < 0)
        return -1;
    stream->watches_out = (events & EPOLLOUT) != 0;
    stream->next = poller->streams;
    if (stream->next != NULL)
        stream->next->previous = stream;
    poller->streams = stream;
    poller->users++;
    stream->is_open = true;
    Py_INCREF(stream);
    return 0;
}

void stream_made(Stream *stream)
{
    stream_tell(stream, names.connection_made, (PyObject *)stream);
}

/* Tell who waits for the connection; no error: there is one. */
static void answer_waiter(PyObject *waiter, PyObject *error)
{
    PyObject *done = PyObject_CallMethodNoArgs(waiter, names.done);
    PyObject *told = NULL;
    if (done == Py_False)
        told = PyObject_CallMethodOneArg(waiter, error != NULL ? names.set_exception : names.set_result,
                                         error != NULL ? error : Py_None);
    Py_XDECREF(told);
    Py_XDECREF(done);
}

static void finish_connecting(Stream *stream)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(stream->descriptor, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    PyObject *waiter = stream->waiter;
    stream->waiter = NULL;
    stream->connecting = false;
    if (error != 0) {
        PyObject *why = make_os_error(error);
        Py_CLEAR(stream->protocol); /* there was no connection, so there is none to lose */
        stream_end(stream);
        if (why != NULL)
            answer_waiter(waiter, why);
        Py_XDECREF(why);
    } else {
        stream_made(stream);
        answer_waiter(waiter, NULL);
    }
    Py_DECREF(waiter);
    if (PyErr_Occurred())
        poller_report(stream);
}

/* Reading */

static void see_end(Stream *stream)
{
    stream->has_ended = true;
    if (!stream_tell(stream, names.eof_received, NULL))
        stream_close(stream);
}

/* Bytes, or 0 when there is nothing to hand on: none have come, or the end has, which is told here. */
static Py_ssize_t receive(Stream *stream, char *data, Py_ssize_t size)
{
    ssize_t got;
    do
        got = recv(stream->descriptor, data, size, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        if (got < size && !stream->is_thorough)
            stream->can_read = false;
        stream->read_turn = stream->poller->turn;
        stream->poller->read += got;
        return got;
    }
    stream->can_read = false;
    if (got == 0)
        see_end(stream);
    else if (errno != EAGAIN)
        stream_fail(stream, errno);
    return 0;
}

static void read_into_their_buffer(Stream *stream)
{
    PyObject *protocol = Py_NewRef(stream->protocol);
    PyObject *hint = PyLong_FromLong(-1);
    PyObject *buffer = hint == NULL ? NULL : PyObject_CallMethodOneArg(protocol, names.get_buffer, hint);
    Py_XDECREF(hint);
    Py_buffer view;
    if (buffer == NULL || PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) {
        poller_report(stream);
    } else if (view.len == 0) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_RuntimeError, "get_buffer() returned an empty buffer");
        poller_report(stream); /* it would be asked again in each turn, for ever */
    } else {
        Py_ssize_t got = receive(stream, view.buf, view.len);
        PyBuffer_Release(&view);
        PyObject *size = got > 0 ? PyLong_FromSsize_t(got) : NULL;
        if (size != NULL)
            stream_tell(stream, names.buffer_updated, size);
        else if (got > 0)
            poller_report(stream);
        Py_XDECREF(size);
    }
    Py_XDECREF(buffer);
    Py_DECREF(protocol);
}

/* To the target, as if its protocol had written it: the same queue, and the same word when that is long. */
static void read_for_target(Stream *stream)
{
    char *data = stream->poller->buffer;
    Py_ssize_t got = receive(stream, data, READ_BYTES);
    if (got == 0)
        return;
    Stream *target = (Stream *)Py_NewRef((PyObject *)stream->target);
    stream->forwarded_in += got;
    stream->large = got >= LARGE_BYTES ? stream->large + got : 0;
    if (stream->large >= stream->large_most)
        Py_CLEAR(stream->target);
    if (!target->closing && !target->eof_wanted) {
        target->forwarded_out += got;
        stream_send(target, data, got, NULL);
    }
    Py_DECREF(target);
}

static void read_once(Stream *stream)
{
    if (stream->target != NULL) {
        read_for_target(stream);
    } else if (stream->is_buffered) {
        read_into_their_buffer(stream);
    } else {
        Py_ssize_t got = receive(stream, stream->poller->buffer, READ_BYTES);
        if (got == 0)
            return;
        PyObject *data = PyBytes_FromStringAndSize(stream->poller->buffer, got);
        if (data == NULL)
            poller_report(stream);
        else
            stream_tell(stream, names.data_received, data);
        Py_XDECREF(data);
    }
}

/* Someone else reads from here on. Each arrival would wake the loop in vain: a third of a large transfer's CPU. */
void stream_read_no_more(Stream *stream)
{
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.ptr = stream};
    stream->reading_paused = stream->watches_out = true;
    if (stream->is_open)
        epoll_ctl(stream->poller->epoll, EPOLL_CTL_MOD, stream->descriptor, &event);
}

bool stream_may_read(Stream *stream)
{
    return stream->can_read && !stream->reading_paused && !stream->closing && !stream->has_ended;
}

/* Once. What is left then, or the end, is for the next turn: others have had theirs by then, and whoever waits in Python
 * for what was read has seen it. What only goes on to a target is followed by its end at once. */
static void read_in_turn(Stream *stream)
{
    read_once(stream);
    if (stream->is_thorough && stream->target != NULL && stream_may_read(stream))
        read_once(stream);
    if (stream_may_read(stream))
        poller_add_due(stream);
}

void stream_on_events(Stream *stream, uint32_t events)
{
    if (stream->is_over)
        return;
    if (stream->connecting) {
        if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
            return;
        finish_connecting(stream);
        if (stream->is_over)
            return;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI))
        stream->is_thorough = true;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI))
        stream->can_read = true;
    if (stream->queue != NULL && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
        stream_settle(stream);
    if (stream_may_read(stream))
        read_in_turn(stream);
}

/* Ending */

/* In order: behind what was written. */
void stream_close(Stream *stream)
{
    if (stream->closing)
        return;
    stream->closing = true;
    Py_CLEAR(stream->target);
    if (stream->queue == NULL)
        stream_end(stream);
}

/* `connection_lost` is called before the turn ends. The descriptor stays open until then, for last bytes. */
void stream_end(Stream *stream)
{
    if (stream->is_over)
        return;
    stream->closing = stream->is_over = true;
    stream_drop_queue(stream);
    Py_CLEAR(stream->target);
    poller_add_due(stream);
}

static void leave_poller(Stream *stream)
{
    Poller *poller = stream->poller;
    if (stream->descriptor >= 0) {
        /* Said, although closing would do: as long as there is a duplicate, epoll goes on telling of it. */
        epoll_ctl(poller->epoll, EPOLL_CTL_DEL, stream->descriptor, NULL);
        close(stream->descriptor);
        stream->descriptor = -1;
    }
    if (!stream->is_open)
        return;
    stream->is_open = false;
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        poller->streams = stream->next;
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    stream->previous = stream->next = NULL;
    poller_leave(poller);
    Py_DECREF(stream);
}

/* The caller holds a reference. */
static void lose(Stream *stream)
{
    if (stream->is_lost)
        return;
    stream->is_lost = true;
    if (stream->protocol != NULL)
        stream_tell(stream, names.connection_lost, stream->error != NULL ? stream->error : Py_None);
    Py_CLEAR(stream->protocol);
    Py_CLEAR(stream->waiter);
    Py_CLEAR(stream->error);
    leave_poller(stream);
}

void stream_drop(Stream *stream)
{
    stream->closing = stream->is_over = stream->is_lost = true;
    stream_drop_queue(stream);
    Py_CLEAR(stream->target);
    leave_poller(stream);
}

void stream_do_due(Stream *stream)
{
    if (stream->is_over)
        lose(stream);
    else if (!stream_may_read(stream))
        return;
    else if (stream->read_turn != stream->poller->turn)
        read_in_turn(stream);
    else
        poller_add_due(stream);
}
