/* Hands inside a container's network, for an exeat that may only talk to the engine. It is the only process of a
   short-lived container that shares the network of another one and has the right to change it.

   door TOKEN, with EXEAT_DOOR=PATH and EXEAT_DOOR_KEY=KEY

   It connects to process 1 of the other container first, by a name that no other network has: so nothing is changed in
   a wrong one. Then it connects to exeat's socket, hands that connection over, and does what it is told: open a socket,
   bind one, send on one. Sockets go out as they are made. It ends with the connection. The form of the requests is in
   exeat/jail/container/door.py. */

#include "bare.h"

enum { EXIT_LOST = 1, ENOENT_ = 2, ECONNREFUSED_ = 111, EINVAL_ = 22, EINTR_ = 4 };
enum { AF_UNIX_ = 1, SOCK_SEQPACKET_ = 5, CLOEXEC_ = 02000000, SCM_RIGHTS_ = 1, SOL_SOCKET_ = 1, MSG_NOSIGNAL_ = 0x4000 };
enum { MAX_REQUEST = 1 << 18, MAX_SOCKETS = 64, LOOKS = 10000 };

struct address { unsigned short family; char path[108]; };
struct span { void *start; size length; };
struct message { void *name; unsigned name_length; struct span *spans; size count; void *control; size control_length; int flags; };
struct rights { size length; int level, kind; int descriptor; };

static char request[MAX_REQUEST];
static int sockets[MAX_SOCKETS];
static int count_of_sockets;

void *memset(void *to, int value, size count) {
    for (char *at = to; count--;) *at++ = (char)value;
    return to;
}

static size length_of(const char *text) {
    size count = 0;
    while (text[count]) count++;
    return count;
}

static void leave(int status) {
    for (;;) CALL1(NR_exit_group, status);
}

static const char *variable(char **environ, const char *name) {
    size count = length_of(name);
    for (; *environ; environ++) {
        size i = 0;
        while (i < count && (*environ)[i] == name[i]) i++;
        if (i == count && (*environ)[i] == '=') return *environ + count + 1;
    }
    return 0;
}

/* `skip` is 1 for an abstract name */
static int connect_to(const char *name, size skip) {
    struct { word seconds, nanoseconds; } a_moment = {0, 1000000};
    struct address address;
    size count = length_of(name);
    if (skip + count >= sizeof address.path) leave(EXIT_LOST);
    memset(&address, 0, sizeof address);
    address.family = AF_UNIX_;
    for (size i = 0; i < count; i++) address.path[skip + i] = name[i];
    for (int look = 0; look < LOOKS; look++) {
        int channel = (int)CALL3(NR_socket, AF_UNIX_, SOCK_SEQPACKET_ | CLOEXEC_, 0);
        word error = CALL3(NR_connect, channel, &address, 2 + skip + count + (skip ? 0 : 1));
        if (error >= 0) return channel;
        CALL1(NR_close, channel);
        if (error != -ECONNREFUSED_) break; /* process 1 may not be listening yet */
        call(NR_ppoll, 0, 0, (word)&a_moment, 0, 8, 0);
    }
    leave(EXIT_LOST);
    return -1;
}

static void tell(int channel, void *bytes, size count, int descriptor) {
    struct span span = {bytes, count};
    struct rights rights = {sizeof(size) + 3 * sizeof(int), SOL_SOCKET_, SCM_RIGHTS_, descriptor};
    struct message message;
    memset(&message, 0, sizeof message);
    message.spans = &span;
    message.count = 1;
    if (descriptor >= 0) {
        message.control = &rights;
        message.control_length = sizeof rights;
    }
    if (CALL3(NR_sendmsg, channel, &message, MSG_NOSIGNAL_) < 0) leave(EXIT_LOST);
}

static word open_socket(const int *what, word count) {
    if (count != 3 * sizeof(int) || count_of_sockets == MAX_SOCKETS) return -EINVAL_;
    word made = CALL3(NR_socket, what[0], what[1] | CLOEXEC_, what[2]);
    if (made >= 0) sockets[count_of_sockets++] = (int)made;
    return made;
}

/* `number` counts the sockets that were opened, from 0 */
static word use_socket(char how, int number, const void *bytes, word count) {
    if (number < 0 || number >= count_of_sockets) return -EINVAL_;
    if (how == 'b') return CALL3(NR_bind, sockets[number], bytes, count);
    return call(NR_sendto, sockets[number], (word)bytes, count, MSG_NOSIGNAL_, 0, 0);
}

__attribute__((used)) void live(word *stack) {
    word argc = *stack;
    char **argv = (char **)(stack + 1), **environ = argv + argc + 1;
    const char *path = variable(environ, "EXEAT_DOOR"), *key = variable(environ, "EXEAT_DOOR_KEY");
    if (argc != 2 || !path || !key) leave(EXIT_LOST);
    int control = connect_to(argv[1], 1);
    int channel = connect_to(path, 0);
    tell(channel, (void *)key, length_of(key), control);
    CALL1(NR_close, control);
    for (;;) {
        word count;
        do count = call(NR_read, channel, (word)request, sizeof request, 0, 0, 0);
        while (count == -EINTR_);
        if (count < 8) leave(count == 0 ? 0 : EXIT_LOST);
        int is_open = request[0] == 'o';
        word answer = is_open ? open_socket((int *)(request + 8), count - 8)
                              : use_socket(request[0], *(int *)(request + 4), request + 8, count - 8);
        int told = (int)answer;
        tell(channel, &told, sizeof told, is_open && answer >= 0 ? (int)answer : -1);
    }
}
