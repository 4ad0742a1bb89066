/* A socket that connections come to. */
#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#define ACCEPTED_A_TURN 64

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

void listener_accept(Listener *listener)
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

void listener_close(Listener *listener)
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
    listener_close(listener);
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

PyObject *poller_listen(Poller *poller, PyObject *args)
{
    PyObject *loop, *socket, *factory;
    if (!PyArg_ParseTuple(args, "OOO", &loop, &socket, &factory))
        return NULL;
    int descriptor = PyObject_AsFileDescriptor(socket);
    if (descriptor < 0 || poller_begin_using(poller, loop) < 0)
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
        poller_end_using(poller);
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
        poller_end_using(poller);
        return NULL;
    }
    poller->users++;
    listener->next = poller->listeners;
    poller->listeners = listener;
    hold_reserve(poller);
    return Py_NewRef((PyObject *)listener); /* one for the caller, one for the poller */
}
