/* One epoll for all streams of a loop. The loop watches the epoll descriptor and calls `work`. */
#include "streams.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <unistd.h>

#define MOST_ROUNDS 16
#define ENOUGH_BYTES (64 * 1024)

/* The loop. Without streams and listeners nothing of it is kept, so that it can go. */

static int call_loop(Poller *poller, PyObject *name, PyObject *one, PyObject *two)
{
    PyObject *given[3] = {poller->loop, one, two};
    PyObject *result = PyObject_VectorcallMethod(name, given, two == NULL ? 2 : 3, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int call_loop_with_epoll(Poller *poller, PyObject *name, PyObject *two)
{
    PyObject *number = PyLong_FromLong(poller->epoll);
    int result = number == NULL ? -1 : call_loop(poller, name, number, two);
    Py_XDECREF(number);
    return result;
}

static void release(Poller *poller)
{
    Py_CLEAR(poller->loop);
    Py_CLEAR(poller->tidy);
    PyMem_Free(poller->buffer);
    poller->buffer = NULL;
    if (poller->epoll >= 0)
        close(poller->epoll);
    if (poller->reserve >= 0)
        close(poller->reserve);
    poller->epoll = poller->reserve = -1;
}

int poller_begin_using(Poller *poller, PyObject *loop)
{
    if (poller->loop != NULL)
        return 0;
    PyObject *work = PyObject_GetAttr((PyObject *)poller, names.work);
    poller->tidy = PyObject_GetAttr((PyObject *)poller, names.tidy);
    poller->loop = Py_NewRef(loop);
    poller->buffer = PyMem_Malloc(READ_BYTES);
    poller->epoll = epoll_create1(EPOLL_CLOEXEC);
    int result = -1;
    if (poller->epoll < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    else if (poller->buffer == NULL)
        PyErr_NoMemory();
    else if (work != NULL && poller->tidy != NULL)
        result = call_loop_with_epoll(poller, names.add_reader, work);
    Py_XDECREF(work);
    if (result < 0)
        release(poller);
    return result;
}

/* Not before the turn has ended, which may still bring new streams, and reads into the buffer. */
void poller_end_using(Poller *poller)
{
    if (poller->users > 0 || poller->loop == NULL || poller->working || poller->due != NULL)
        return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (call_loop_with_epoll(poller, names.remove_reader, NULL) < 0)
        PyErr_Clear(); /* the loop is closed */
    PyErr_Restore(type, value, trace);
    release(poller);
}

void poller_leave(Poller *poller)
{
    poller->users--;
    poller_end_using(poller);
}

static void kick(Poller *poller)
{
    if (poller->kicked || poller->loop == NULL)
        return;
    poller->kicked = call_loop(poller, names.call_soon, poller->tidy, NULL) == 0;
    if (!poller->kicked)
        PyErr_Clear(); /* the loop is closed, and nothing comes any more; or else the next to be due tries again */
}

void poller_add_due(Stream *stream)
{
    Poller *poller = stream->poller;
    if (!stream->is_due) {
        stream->is_due = true;
        stream->next_due = NULL;
        if (poller->due_end != NULL)
            poller->due_end->next_due = stream;
        else
            poller->due = stream;
        poller->due_end = stream;
        Py_INCREF(stream);
    }
    if (!poller->working)
        kick(poller);
}

void poller_report(Stream *stream)
{
    Poller *poller = stream->poller;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        Py_XSETREF(poller->fatal, Py_NewRef(value));
    } else if (poller->loop != NULL) {
        PyObject *context = Py_BuildValue("{s:s, s:O, s:O}", "message", "a callback of a connection failed",
                                          "exception", value, "transport", stream);
        if (context == NULL || call_loop(poller, names.call_exception_handler, context, NULL) < 0)
            PyErr_WriteUnraisable((PyObject *)stream);
        Py_XDECREF(context);
    }
    if (!stream->is_over && PyErr_GivenExceptionMatches(type, PyExc_Exception))
        Py_XSETREF(stream->error, Py_NewRef(value));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    stream_end(stream);
}

/* A turn */

/* Those that were due when this began; others have to wait for the next turn. */
static void do_due(Poller *poller)
{
    Stream *due = poller->due;
    poller->due = poller->due_end = NULL;
    while (due != NULL) {
        Stream *stream = due;
        due = stream->next_due;
        stream->next_due = NULL;
        stream->is_due = false;
        stream_do_due(stream);
        Py_DECREF(stream);
    }
}

static void let_closed_go(Poller *poller)
{
    while (poller->closed != NULL) {
        Listener *closed = poller->closed;
        poller->closed = closed->next;
        Py_DECREF(closed);
    }
}

static PyObject *end_turn(Poller *poller)
{
    do_due(poller);
    let_closed_go(poller);
    poller->working = false;
    if (poller->due != NULL)
        kick(poller);
    poller_end_using(poller);
    if (poller->fatal != NULL) {
        PyObject *fatal = poller->fatal;
        poller->fatal = NULL;
        PyErr_SetObject((PyObject *)Py_TYPE(fatal), fatal);
        Py_DECREF(fatal);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_tidy(Poller *poller, PyObject *Py_UNUSED(ignored))
{
    poller->kicked = false;
    if (poller->working)
        Py_RETURN_NONE;
    poller->working = true;
    poller->turn++;
    return end_turn(poller);
}

/* A stream stays in memory while its event is in the list: none is freed before `do_due`. */
static PyObject *py_work(Poller *poller, PyObject *Py_UNUSED(ignored))
{
    struct epoll_event events[MOST_EVENTS];
    if (poller->working)
        Py_RETURN_NONE;
    poller->working = true;
    poller->turn++;
    poller->python = false;
    poller->read = 0;
    /* What is handed on without Python leaves the loop nothing to do. A thirtieth less CPU for small pieces. */
    for (int round = 0; round < MOST_ROUNDS && !poller->python && poller->read < ENOUGH_BYTES; round++) {
        int count = epoll_wait(poller->epoll, events, MOST_EVENTS, 0);
        if (count <= 0)
            break;
        for (int i = 0; i < count; i++) {
            PyObject *who = events[i].data.ptr;
            if (Py_IS_TYPE(who, &StreamType))
                stream_on_events((Stream *)who, events[i].events);
            else
                listener_accept((Listener *)who);
        }
    }
    return end_turn(poller);
}

/* What Python calls */

static bool read_address(const char *text, int port, struct sockaddr_storage *to, socklen_t *size)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *size = sizeof *v4;
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) != 1)
        return false;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    *size = sizeof *v6;
    return true;
}

/* A stream that connects, and a future for when it has. */
static PyObject *py_connect(Poller *poller, PyObject *args)
{
    PyObject *loop, *protocol;
    const char *text;
    unsigned short port;
    struct sockaddr_storage address;
    socklen_t size;
    if (!PyArg_ParseTuple(args, "OOsH", &loop, &protocol, &text, &port))
        return NULL;
    if (!read_address(text, port, &address, &size))
        return PyErr_Format(PyExc_ValueError, "not an address: %s", text);
    if (poller_begin_using(poller, loop) < 0)
        return NULL;
    Stream *stream = NULL;
    PyObject *result = NULL;
    int on = 1;
    int descriptor = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto failed;
    }
    stream = stream_new(poller, descriptor, protocol);
    if (stream == NULL)
        goto failed;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    stream->peer = address;
    stream->connecting = true;
    stream->waiter = PyObject_CallMethodNoArgs(loop, names.create_future);
    if (stream->waiter == NULL)
        goto failed;
    if ((connect(descriptor, (struct sockaddr *)&address, size) < 0 && errno != EINPROGRESS) ||
        stream_register(stream, EPOLLIN | EPOLLOUT) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto failed;
    }
    result = PyTuple_Pack(2, stream, stream->waiter);
failed:
    Py_XDECREF(stream);
    poller_end_using(poller);
    return result;
}

/* A connected socket, of which only the descriptor is taken: the caller has detached it. */
static PyObject *py_adopt(Poller *poller, PyObject *args)
{
    PyObject *loop, *protocol;
    int descriptor;
    if (!PyArg_ParseTuple(args, "OOi", &loop, &protocol, &descriptor))
        return NULL;
    if (poller_begin_using(poller, loop) < 0) {
        close(descriptor);
        return NULL;
    }
    int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Stream *stream = stream_new(poller, descriptor, protocol);
    if (stream != NULL) {
        socklen_t size = sizeof stream->peer;
        if (getpeername(descriptor, (struct sockaddr *)&stream->peer, &size) < 0 ||
            stream_register(stream, EPOLLIN) < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            Py_CLEAR(stream);
        } else {
            stream_made(stream);
        }
    }
    poller_end_using(poller);
    return (PyObject *)stream;
}

static PyObject *new_poller(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names_given))
{
    Poller *poller = (Poller *)type->tp_alloc(type, 0);
    if (poller != NULL)
        poller->epoll = poller->reserve = -1;
    return (PyObject *)poller;
}

/* Streams and listeners keep their poller, and it keeps them. A loop that was closed without closing them leaves all of
 * these to the garbage collector. */
static int traverse_poller(Poller *poller, visitproc visit, void *arg)
{
    Py_VISIT(poller->loop);
    Py_VISIT(poller->tidy);
    Py_VISIT(poller->fatal);
    for (Stream *each = poller->streams; each != NULL; each = each->next)
        Py_VISIT(each);
    for (Stream *each = poller->due; each != NULL; each = each->next_due)
        Py_VISIT(each);
    for (Listener *each = poller->listeners; each != NULL; each = each->next)
        Py_VISIT(each);
    return 0;
}

static int clear_poller(Poller *poller)
{
    poller->working = true; /* so that nothing asks the loop for another turn */
    while (poller->streams != NULL) {
        Stream *stream = (Stream *)Py_NewRef((PyObject *)poller->streams);
        stream_drop(stream);
        Py_DECREF(stream);
    }
    while (poller->listeners != NULL)
        listener_close(poller->listeners);
    do_due(poller);
    let_closed_go(poller);
    poller->working = false;
    poller_end_using(poller);
    Py_CLEAR(poller->fatal);
    return 0;
}

/* Before anything of the same garbage is cleared: a socket that was could not be closed any more. */
static void finalize_poller(Poller *poller)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    clear_poller(poller);
    PyErr_Restore(type, value, trace);
}

static void free_poller(Poller *poller)
{
    PyObject_GC_UnTrack(poller);
    Py_CLEAR(poller->fatal);
    release(poller);
    Py_TYPE(poller)->tp_free((PyObject *)poller);
}

static PyMethodDef poller_methods[] = {
    {"listen", (PyCFunction)poller_listen, METH_VARARGS, "listen(loop, socket, factory) -> Listener"},
    {"connect", (PyCFunction)py_connect, METH_VARARGS, "connect(loop, protocol, address, port) -> Stream, future"},
    {"adopt", (PyCFunction)py_adopt, METH_VARARGS, "adopt(loop, protocol, descriptor) -> Stream"},
    {"work", (PyCFunction)py_work, METH_NOARGS, "For the loop: there are events."},
    {"tidy", (PyCFunction)py_tidy, METH_NOARGS, "For the loop: something is left to do."},
    {0},
};

PyTypeObject PollerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exeat.gateway.flow._streams.Poller",
    .tp_basicsize = sizeof(Poller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "All streams of one loop.",
    .tp_new = new_poller,
    .tp_traverse = (traverseproc)traverse_poller,
    .tp_clear = (inquiry)clear_poller,
    .tp_finalize = (destructor)finalize_poller,
    .tp_dealloc = (destructor)free_poller,
    .tp_methods = poller_methods,
};
