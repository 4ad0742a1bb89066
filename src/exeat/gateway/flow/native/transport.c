/* A stream as Python sees it: an asyncio.Transport, which offers itself as its socket too. */
#include "streams.h"

#include <arpa/inet.h>
#include <errno.h>

#define SO_ORIGINAL_DST_NUMBER 80 /* linux/netfilter_ipv4.h and netfilter_ipv6/ip6_tables.h */

static PyObject *py_write(Stream *stream, PyObject *data)
{
    if (stream->closing || stream->eof_wanted || stream->connecting)
        Py_RETURN_NONE;
    if (PyBytes_CheckExact(data)) {
        if (PyBytes_GET_SIZE(data) > 0)
            stream_send(stream, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), data);
        Py_RETURN_NONE;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (view.len > 0)
        stream_send(stream, view.buf, view.len, NULL);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *py_write_eof(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    if (!stream->closing && !stream->eof_wanted) {
        stream->eof_wanted = true;
        if (stream->queue == NULL)
            stream_settle(stream);
    }
    Py_RETURN_NONE;
}

static PyObject *py_close(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    stream_close(stream);
    Py_RETURN_NONE;
}

static PyObject *py_abort(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    if (stream->connecting) { /* whoever waits for it has gone, and there is nothing to lose */
        stream->connecting = false;
        Py_CLEAR(stream->waiter);
        Py_CLEAR(stream->protocol);
    }
    stream_end(stream);
    Py_RETURN_NONE;
}

static PyObject *py_is_closing(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(stream->closing);
}

static PyObject *py_pause_reading(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    stream->reading_paused = true;
    Py_RETURN_NONE;
}

static PyObject *py_resume_reading(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    stream->reading_paused = false;
    if (stream_may_read(stream))
        poller_add_due(stream);
    Py_RETURN_NONE;
}

static PyObject *py_hand_over(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    stream_read_no_more(stream);
    Py_RETURN_NONE;
}

static PyObject *py_is_reading(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(!stream->reading_paused && !stream->closing);
}

static PyObject *py_get_write_buffer_size(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSsize_t(stream->queued);
}

static PyObject *py_set_write_buffer_limits(Stream *stream, PyObject *args, PyObject *given)
{
    static char *known[] = {"high", "low", NULL};
    PyObject *high = Py_None, *low = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, given, "|OO", known, &high, &low))
        return NULL;
    Py_ssize_t most = high == Py_None ? WRITE_HIGH_BYTES : PyLong_AsSsize_t(high);
    Py_ssize_t least = low == Py_None ? most / 4 : PyLong_AsSsize_t(low);
    if (PyErr_Occurred())
        return NULL;
    if (least < 0 || most < least)
        return PyErr_Format(PyExc_ValueError, "high (%zd) must be >= low (%zd) must be >= 0", most, least);
    stream->high = most;
    stream->low = least;
    Py_RETURN_NONE;
}

static PyObject *py_set_protocol(Stream *stream, PyObject *protocol)
{
    if (!stream->is_lost)
        stream_use(stream, protocol);
    Py_RETURN_NONE;
}

static PyObject *py_get_protocol(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(stream->protocol != NULL ? stream->protocol : Py_None);
}

static PyObject *address_tuple(const struct sockaddr_storage *address)
{
    char text[INET6_ADDRSTRLEN];
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        return Py_BuildValue("(si)", text, ntohs(v4->sin_port));
    }
    if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        return Py_BuildValue("(siII)", text, ntohs(v6->sin6_port), ntohl(v6->sin6_flowinfo), v6->sin6_scope_id);
    }
    Py_RETURN_NONE;
}

static PyObject *py_get_extra_info(Stream *stream, PyObject *args)
{
    const char *name;
    PyObject *otherwise = Py_None;
    if (!PyArg_ParseTuple(args, "s|O", &name, &otherwise))
        return NULL;
    if (strcmp(name, "socket") == 0 && stream->descriptor >= 0)
        return Py_NewRef((PyObject *)stream);
    if (strcmp(name, "peername") == 0)
        return address_tuple(&stream->peer);
    return Py_NewRef(otherwise);
}

static PyObject *py_fileno(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(stream->descriptor);
}

static PyObject *py_setsockopt(Stream *stream, PyObject *args)
{
    int level, option;
    Py_buffer value;
    if (!PyArg_ParseTuple(args, "iiy*", &level, &option, &value))
        return NULL;
    int result = setsockopt(stream->descriptor, level, option, value.buf, value.len);
    PyBuffer_Release(&value);
    if (result < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static bool is_same(const struct sockaddr_storage *one, const struct sockaddr_storage *other)
{
    if (one->ss_family != other->ss_family)
        return false;
    if (one->ss_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)one, *b = (const void *)other;
        return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *a = (const void *)one, *b = (const void *)other;
    return a->sin6_port == b->sin6_port && memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
}

/* Where a redirected connection was meant to go, as the kernel's sockaddr; None if that is where it came. */
static PyObject *py_original_destination(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    struct sockaddr_storage ours = stream->listener, meant = {0};
    socklen_t size = sizeof ours;
    if (!stream->has_listener || stream->listener_is_wild)
        if (getsockname(stream->descriptor, (struct sockaddr *)&ours, &size) < 0)
            return PyErr_SetFromErrno(PyExc_OSError);
    size = ours.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int level = ours.ss_family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
    if (getsockopt(stream->descriptor, level, SO_ORIGINAL_DST_NUMBER, &meant, &size) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (is_same(&ours, &meant))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((char *)&meant, size);
}

/* What is read goes to `target` from here on, as if the protocol wrote it there. After `large_most` bytes in large
 * pieces in a row the protocol gets it again. Counted in `take_forwarded`. */
static PyObject *py_forward(Stream *stream, PyObject *args)
{
    PyObject *target;
    Py_ssize_t large_most;
    if (!PyArg_ParseTuple(args, "O!n", &StreamType, &target, &large_most))
        return NULL;
    if (stream->closing || ((Stream *)target)->poller != stream->poller)
        Py_RETURN_FALSE;
    Py_XSETREF(stream->target, (Stream *)Py_NewRef(target));
    stream->large = 0;
    stream->large_most = large_most;
    Py_RETURN_TRUE;
}

static PyObject *py_take_forwarded(Stream *stream, PyObject *Py_UNUSED(ignored))
{
    long long in = stream->forwarded_in, out = stream->forwarded_out;
    stream->forwarded_in = stream->forwarded_out = 0;
    return Py_BuildValue("(LL)", in, out);
}

static PyObject *get_family(Stream *stream, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(stream->peer.ss_family);
}

static int traverse(Stream *stream, visitproc visit, void *arg)
{
    Py_VISIT(stream->poller);
    Py_VISIT(stream->protocol);
    Py_VISIT(stream->waiter);
    Py_VISIT(stream->error);
    Py_VISIT(stream->target);
    return 0;
}

static void dealloc(Stream *stream)
{
    PyObject_GC_UnTrack(stream);
    stream_drop(stream);
    Py_CLEAR(stream->protocol);
    Py_CLEAR(stream->waiter);
    Py_CLEAR(stream->error);
    Py_CLEAR(stream->poller);
    PyObject_GC_Del(stream);
}

#define METHOD(name, kind) {#name, (PyCFunction)(void (*)(void))py_##name, kind, NULL}
static PyMethodDef methods[] = {
    METHOD(write, METH_O),
    METHOD(write_eof, METH_NOARGS),
    METHOD(close, METH_NOARGS),
    METHOD(abort, METH_NOARGS),
    METHOD(is_closing, METH_NOARGS),
    METHOD(pause_reading, METH_NOARGS),
    METHOD(resume_reading, METH_NOARGS),
    METHOD(hand_over, METH_NOARGS),
    METHOD(is_reading, METH_NOARGS),
    METHOD(get_write_buffer_size, METH_NOARGS),
    METHOD(set_write_buffer_limits, METH_VARARGS | METH_KEYWORDS),
    METHOD(set_protocol, METH_O),
    METHOD(get_protocol, METH_NOARGS),
    METHOD(get_extra_info, METH_VARARGS),
    METHOD(fileno, METH_NOARGS),
    METHOD(setsockopt, METH_VARARGS),
    METHOD(original_destination, METH_NOARGS),
    METHOD(forward, METH_VARARGS),
    METHOD(take_forwarded, METH_NOARGS),
    {0},
};
static PyGetSetDef properties[] = {
    {.name = "family", .get = (getter)get_family},
    {0},
};

PyTypeObject StreamType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exeat.gateway.flow._streams.Stream",
    .tp_basicsize = sizeof(Stream),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A TCP connection, with the interface of asyncio's transports.",
    .tp_traverse = (traverseproc)traverse,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_getset = properties,
};
