/* The module: its types, and the names that its calls go by. */
#include "streams.h"

#include <stddef.h>

/* To be raised, there and in streams.py, when what Python calls changes: a module of before may still be in place. */
#define INTERFACE 1

struct Names names;

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
    if (made == NULL || PyModule_AddIntConstant(made, "INTERFACE", INTERFACE) < 0 || PyModule_AddType(made, &PollerType) < 0 || PyModule_AddType(made, &ListenerType) < 0 ||
        PyModule_AddType(made, &StreamType) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
