/* One epoll for all streams of a loop. The loop watches the epoll descriptor and calls `work`. */
#include "streams.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <unistd.h>

#define ACCEPTED_A_TURN 64
#define MOST_ROUNDS 16
#define ENOUGH_BYTES (64 * 1024)

struct Names names;

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

static int begin_using(Poller *poller, PyObject *loop)
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
static void end_using(Poller *poller)
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
    end_using(poller);
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

/* Listening */

static void accept_one(Listener *listener, int descriptor, const struct sockaddr_storage *peer)
{
    listener->poller->python = true;
    Poller *poller = listener->poller;
    PyObject *protocol = PyObject_CallNoArgs(listener->factory);
    if (protocol == NULL) {
        close(descriptor);
        PyErr_WriteUnraisable(listener->factory);
        return;
    }
    Stream *stream = stream_new(poller, descriptor, protocol);
    Py_DECREF(protocol);
    if (stream == NULL) {
        PyErr_WriteUnraisable(listener->factory);
        return;
    }
    stream->peer = *peer;
    stream->listener = listener->address;
    stream->listener_is_wild = listener->is_wild;
    stream->has_listener = true;
    if (stream_register(stream, EPOLLIN) == 0) {
        stream_made(stream);
        /* Who speaks first has mostly done so by now: it is read before the turn ends. */
        stream->can_read = true;
        if (stream_may_read(stream))
            poller_add_due(stream);
    }
    Py_DECREF(stream);
}

static void hold_reserve(Poller *poller)
{
    if (poller->reserve < 0)
        poller->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_some(Listener *listener)
{
    Poller *poller = listener->poller;
    hold_reserve(poller); /* another thread may have taken its place when it was given up */
    for (int i = 0; i < ACCEPTED_A_TURN && listener->socket != NULL; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t size = sizeof peer;
        int descriptor =
            accept4(listener->descriptor, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor >= 0) {
            accept_one(listener, descriptor, &peer);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if ((errno == EMFILE || errno == ENFILE) && poller->reserve >= 0) {
            close(poller->reserve);
            descriptor = accept4(listener->descriptor, NULL, NULL, SOCK_CLOEXEC);
            if (descriptor >= 0)
                close(descriptor);
            poller->reserve = -1;
            hold_reserve(poller);
            if (descriptor >= 0)
                continue;
        }
        return;
    }
}

static void close_listener(Listener *listener)
{
    Poller *poller = listener->poller;
    if (listener->socket == NULL)
        return;
    epoll_ctl(poller->epoll, EPOLL_CTL_DEL, listener->descriptor, NULL);
    PyObject *socket = listener->socket;
    listener->socket = NULL;
    PyObject *closed = PyObject_CallMethod(socket, "close", NULL);
    if (closed == NULL)
        PyErr_WriteUnraisable(socket);
    Py_XDECREF(closed);
    Py_DECREF(socket);
    Listener **at = &poller->listeners;
    while (*at != listener)
        at = &(*at)->next;
    *at = listener->next;
    poller_leave(poller);
    /* The poller's reference. It may be in the list of events still. */
    if (poller->working) {
        listener->next = poller->closed;
        poller->closed = listener;
    } else {
        Py_DECREF(listener);
    }
}

static PyObject *py_close_listener(Listener *listener, PyObject *Py_UNUSED(ignored))
{
    Py_INCREF(listener);
    close_listener(listener);
    Py_DECREF(listener);
    Py_RETURN_NONE;
}

static int traverse_listener(Listener *listener, visitproc visit, void *arg)
{
    Py_VISIT(listener->socket);
    Py_VISIT(listener->factory);
    Py_VISIT(listener->poller);
    return 0;
}

static void free_listener(Listener *listener)
{
    PyObject_GC_UnTrack(listener);
    Py_CLEAR(listener->socket);
    Py_CLEAR(listener->factory);
    Py_CLEAR(listener->poller);
    PyObject_GC_Del(listener);
}

static PyMethodDef listener_methods[] = {
    {"close", (PyCFunction)py_close_listener, METH_NOARGS, "Listen no more, and close the socket."},
    {0},
};

PyTypeObject ListenerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exeat.gateway.flow._streams.Listener",
    .tp_basicsize = sizeof(Listener),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)traverse_listener,
    .tp_dealloc = (destructor)free_listener,
    .tp_methods = listener_methods,
};

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
    end_using(poller);
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
                accept_some((Listener *)who);
        }
    }
    return end_turn(poller);
}

/* What Python calls */

static PyObject *py_listen(Poller *poller, PyObject *args)
{
    PyObject *loop, *socket, *factory;
    if (!PyArg_ParseTuple(args, "OOO", &loop, &socket, &factory))
        return NULL;
    int descriptor = PyObject_AsFileDescriptor(socket);
    if (descriptor < 0 || begin_using(poller, loop) < 0)
        return NULL;
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    int on = 1;
    /* Connections inherit it. What is written in two parts would wait for the peer's word about the first. */
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Listener *listener = NULL;
    if (getsockname(descriptor, (struct sockaddr *)&address, &size) == 0)
        listener = PyObject_GC_New(Listener, &ListenerType);
    else
        PyErr_SetFromErrno(PyExc_OSError);
    if (listener == NULL) {
        end_using(poller);
        return NULL;
    }
    listener->next = NULL;
    listener->descriptor = descriptor;
    listener->socket = Py_NewRef(socket);
    listener->poller = (Poller *)Py_NewRef((PyObject *)poller);
    listener->factory = Py_NewRef(factory);
    listener->address = address;
    if (address.ss_family == AF_INET)
        listener->is_wild = ((struct sockaddr_in *)&address)->sin_addr.s_addr == INADDR_ANY;
    else
        listener->is_wild = IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&address)->sin6_addr);
    PyObject_GC_Track(listener);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};
    if (epoll_ctl(poller->epoll, EPOLL_CTL_ADD, descriptor, &event) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(listener);
        end_using(poller);
        return NULL;
    }
    poller->users++;
    listener->next = poller->listeners;
    poller->listeners = listener;
    hold_reserve(poller);
    return Py_NewRef((PyObject *)listener); /* one for the caller, one for the poller */
}

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
    if (begin_using(poller, loop) < 0)
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
    end_using(poller);
    return result;
}

/* A connected socket, of which only the descriptor is taken: the caller has detached it. */
static PyObject *py_adopt(Poller *poller, PyObject *args)
{
    PyObject *loop, *protocol;
    int descriptor;
    if (!PyArg_ParseTuple(args, "OOi", &loop, &protocol, &descriptor))
        return NULL;
    if (begin_using(poller, loop) < 0) {
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
    end_using(poller);
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
        close_listener(poller->listeners);
    do_due(poller);
    let_closed_go(poller);
    poller->working = false;
    end_using(poller);
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
    {"listen", (PyCFunction)py_listen, METH_VARARGS, "listen(loop, socket, factory) -> Listener"},
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

static int make_names(void)
{
    static const struct {
        PyObject **to;
        const char *text;
    } all[] = {
        {&names.add_reader, "add_reader"},
        {&names.remove_reader, "remove_reader"},
        {&names.call_soon, "call_soon"},
        {&names.create_future, "create_future"},
        {&names.call_exception_handler, "call_exception_handler"},
        {&names.connection_made, "connection_made"},
        {&names.data_received, "data_received"},
        {&names.eof_received, "eof_received"},
        {&names.connection_lost, "connection_lost"},
        {&names.pause_writing, "pause_writing"},
        {&names.resume_writing, "resume_writing"},
        {&names.get_buffer, "get_buffer"},
        {&names.buffer_updated, "buffer_updated"},
        {&names.done, "done"},
        {&names.set_result, "set_result"},
        {&names.set_exception, "set_exception"},
        {&names.work, "work"},
        {&names.tidy, "tidy"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((*all[i].to = PyUnicode_InternFromString(all[i].text)) == NULL)
            return -1;
    return 0;
}

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_streams", .m_doc = "TCP streams for asyncio: see streams.h.", .m_size = -1};

PyMODINIT_FUNC PyInit__streams(void)
{
    PyObject *made = make_names() < 0 ? NULL : PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &PollerType) < 0 || PyModule_AddType(made, &ListenerType) < 0 ||
        PyModule_AddType(made, &StreamType) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
