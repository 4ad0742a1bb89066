/* Process 1 of a container that is a jail: it waits until the jail's network stands, starts the command, reaps, and
   passes signals on. It is mounted into whatever image the user named, so it needs nothing of it: no libc, no shell.

   init TOKEN COMMAND [ARGUMENT...]

   It listens on an abstract Unix socket, which belongs to the network namespace: who connects to it has entered the
   right one. That connection is all that it listens to afterwards. When it ends, so does init, and with init, by the
   kernel, everything in the container: a run that is killed leaves nothing running.

   The messages are those of exeat/jail/messages.py, which also has their form. `scripts/build-init` builds it. */

#include "bare.h"

enum { EXIT_LOST = 1, EXIT_NOT_FOUND = 127, EXIT_NOT_RUN = 126 };
enum { ENOENT_ = 2, EINTR_ = 4, EACCES_ = 13, ENOTDIR_ = 20 };
enum { SIGINT_ = 2, SIGKILL_ = 9, SIGCHLD_ = 17, SIGCONT_ = 18, SIGSTOP_ = 19, SIGTSTP_ = 20, SIGTTIN_ = 21, SIGTTOU_ = 22 };
enum { WAIT_MS = 60000, MAX_PACKET = 256, MAX_PATH = 4096, MAX_RIGHTS = 4, MOST_REAPED = 64 };

enum { AF_UNIX_ = 1, SOCK_SEQPACKET_ = 5, CLOEXEC_ = 02000000, SCM_RIGHTS_ = 1, SOL_SOCKET_ = 1 };
enum { EPOLL_CTL_ADD_ = 1, MSG_NOSIGNAL_ = 0x4000, MSG_CMSG_CLOEXEC_ = 0x40000000, POLLIN_ = 1 };
enum { PR_SET_DUMPABLE_ = 4, PR_SET_SECCOMP_ = 22, PR_SET_NO_NEW_PRIVS_ = 38, SECCOMP_MODE_FILTER_ = 2 };
enum { TIOCSCTTY_ = 0x540E, TIOCSPGRP_ = 0x5410 };
enum { SIG_BLOCK_ = 0, SIG_SETMASK_ = 2, WNOHANG_ = 1, WUNTRACED_ = 2 };

struct address { unsigned short family; char path[108]; };
struct wait { int descriptor; short events, found; };
#if defined(__x86_64__)
struct __attribute__((packed)) event { unsigned events; unsigned long data; };
#else
struct event { unsigned events; unsigned long data; };
#endif
struct span { void *start; size length; };
struct message { void *name; unsigned name_length; struct span *spans; size count; void *control; size control_length; int flags; };
struct rights { size length; int level, kind; int descriptors[MAX_RIGHTS]; };
struct filter { unsigned short count; const void *code; };
struct action { void *handler; unsigned long flags; void *restorer; unsigned long mask; };

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

void *memset(void *to, int value, size count) {
    for (char *at = to; count--;) *at++ = (char)value;
    return to;
}

void *memcpy(void *to, const void *from, size count) {
    const char *source = from;
    for (char *at = to; count--;) *at++ = *source++;
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

/* Words to the runner */

struct packet { char bytes[MAX_PACKET]; size length; };

static void add(struct packet *packet, const char *text, size count) {
    for (size i = 0; i < count && packet->length < MAX_PACKET; i++) packet->bytes[packet->length++] = text[i];
}

static size digits_of(word number, char *digits) {
    char reversed[24];
    size count = 0, at = 0;
    unsigned long left = number < 0 ? -(unsigned long)number : (unsigned long)number;
    do reversed[count++] = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0) digits[at++] = '-';
    while (count) digits[at++] = reversed[--count];
    return at;
}

static void add_field(struct packet *packet, char tag, const char *text, size count) {
    char digits[24];
    add(packet, &tag, 1);
    add(packet, digits, digits_of((word)count, digits));
    add(packet, ":", 1);
    add(packet, text, count);
}

static void add_number(struct packet *packet, word number) {
    char digits[24];
    add_field(packet, 'i', digits, digits_of(number, digits));
}

static void tell(int control, const struct packet *packet) {
    call(NR_sendto, control, (word)packet->bytes, (word)packet->length, MSG_NOSIGNAL_, 0, 0);
}

static void tell_number(int control, char kind, word number) {
    struct packet packet;
    packet.length = 0;
    add(&packet, &kind, 1);
    add_number(&packet, number);
    tell(control, &packet);
}

/* Words from the runner */

#define RIGHTS_HEAD (sizeof(size) + 2 * sizeof(int))

static word receive(int control, char *bytes, struct rights *rights) {
    struct span span = {bytes, MAX_PACKET};
    struct message message;
    word count;
    do {
        memset(&message, 0, sizeof message);
        message.spans = &span;
        message.count = 1;
        message.control = rights;
        message.control_length = rights ? RIGHTS_HEAD + MAX_RIGHTS * sizeof(int) : 0;
        if (rights) memset(rights, 0, sizeof *rights);
        count = CALL3(NR_recvmsg, control, &message, MSG_CMSG_CLOEXEC_);
    } while (count == -EINTR_);
    if (rights && message.control_length < RIGHTS_HEAD) rights->length = 0;
    return count;
}

static size count_of(const struct rights *rights) {
    size count;
    if (rights->length < RIGHTS_HEAD || rights->level != SOL_SOCKET_ || rights->kind != SCM_RIGHTS_) return 0;
    count = (rights->length - RIGHTS_HEAD) / sizeof(int);
    return count < MAX_RIGHTS ? count : MAX_RIGHTS;
}

/* "Gi2:15" -> 15; 0 for anything else */
static int signal_in(const char *bytes, word count) {
    int number = 0;
    if (count < 5 || bytes[0] != 'G' || bytes[1] != 'i' || bytes[3] != ':') return 0;
    for (word i = 4; i < count; i++) {
        if (bytes[i] < '0' || bytes[i] > '9' || number > 64) return 0;
        number = number * 10 + (bytes[i] - '0');
    }
    return number <= 64 ? number : 0;
}

/* Descriptors */

/* What an engine left open by mistake would be the command's way out of the container (CVE-2024-21626). And if it opened
   no standard streams, what we open next must not be taken for one. */
static void settle_descriptors(void) {
    word last;
    CALL3(NR_close_range, 3, ~0u, 0);
    do last = CALL3(NR_socket, AF_UNIX_, SOCK_SEQPACKET_ | CLOEXEC_, 0);
    while (last >= 0 && last < 3);
    if (last < 0) leave(EXIT_LOST);
    CALL1(NR_close, last);
}

/* The one connection */

static int wait_for_runner(const char *token) {
    struct address address;
    struct wait wait;
    struct { word seconds, nanoseconds; } limit = {WAIT_MS / 1000, 0};
    size count = length_of(token);
    int listener = (int)CALL3(NR_socket, AF_UNIX_, SOCK_SEQPACKET_ | CLOEXEC_, 0), control;
    if (listener < 0 || count > 100) leave(EXIT_LOST);
    memset(&address, 0, sizeof address);
    address.family = AF_UNIX_;
    for (size i = 0; i < count; i++) address.path[1 + i] = token[i];
    if (CALL3(NR_bind, listener, &address, 3 + count) < 0 || CALL2(NR_listen, listener, 1) < 0) leave(EXIT_LOST);
    wait.descriptor = listener;
    wait.events = POLLIN_;
    if (call(NR_ppoll, (word)&wait, 1, (word)&limit, 0, 8, 0) != 1) leave(EXIT_LOST); /* whoever started it has gone */
    control = (int)CALL4(NR_accept4, listener, 0, 0, CLOEXEC_);
    CALL1(NR_close, listener);
    if (control < 0) leave(EXIT_LOST);
    return control;
}

/* The command */

static const char *variable(char **environ, const char *name) {
    size count = length_of(name);
    for (; *environ; environ++) {
        size i = 0;
        while (i < count && (*environ)[i] == name[i]) i++;
        if (i == count && (*environ)[i] == '=') return *environ + count + 1;
    }
    return 0;
}

static word run(char **argv, char **environ) {
    char path[MAX_PATH];
    const char *name = argv[0], *folders = variable(environ, "PATH");
    size count = length_of(name);
    word refused = 0;
    for (size i = 0; i < count; i++)
        if (name[i] == '/') return CALL3(NR_execve, name, argv, environ);
    if (!folders || !*folders) folders = DEFAULT_PATH;
    while (count) {
        size length = 0;
        while (folders[length] && folders[length] != ':') length++;
        if (length + count + 2 <= MAX_PATH) {
            size at = 0;
            for (; at < length; at++) path[at] = folders[at];
            if (length) path[at++] = '/';
            for (size i = 0; i <= count; i++) path[at++] = name[i];
            word error = -CALL3(NR_execve, path, argv, environ);
            if (error != ENOENT_ && error != ENOTDIR_ && !refused) refused = error;
        }
        if (!folders[length]) break;
        folders += length + 1;
    }
    return refused ? -refused : -ENOENT_;
}

static const char *words_for(word error) {
    return error == ENOENT_ ? "No such file or directory" : error == EACCES_ ? "Permission denied" : "cannot be executed";
}

/* The system call filter of every jail, made by exeat.jail.limits.seccomp when this is built. Engines differ in what they
   refuse: Podman lets programs make user namespaces, in which mounts hold nothing; an older Docker lets them have vsock
   and io_uring. */
static const unsigned long long FILTER_CODE[] = {
#include FILTER
};

static word restrict_calls(void) {
    struct filter filter = {sizeof FILTER_CODE / 8, FILTER_CODE};
    word error = CALL2(NR_prctl, PR_SET_NO_NEW_PRIVS_, 1); /* the other arguments have to be 0, and are */
    return error ? error : CALL3(NR_prctl, PR_SET_SECCOMP_, SECCOMP_MODE_FILTER_, &filter);
}

static void become_command(int control, const int *streams, int terminal, char **argv, char **environ) {
    struct packet packet;
    struct action action;
    unsigned long none = 0;
    int own = (int)CALL1(NR_getpid, 0);
    if (terminal >= 0) {
        CALL2(NR_setpgid, 0, 0);
        CALL3(NR_ioctl, terminal, TIOCSPGRP_, &own);
    } else {
        CALL1(NR_setsid, 0);
    }
    for (int i = 0; i < 3; i++)
        if (CALL3(NR_dup3, streams[i], i, 0) < 0) leave(EXIT_NOT_RUN);
    memset(&action, 0, sizeof action);
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL_ && number != SIGSTOP_) CALL4(NR_rt_sigaction, number, &action, 0, 8);
    CALL4(NR_rt_sigprocmask, SIG_SETMASK_, &none, 0, 8);
    packet.length = 0;
    word error = -restrict_calls();
    if (error) {
        add(&packet, "F", 1);
        add_field(&packet, 's', "filter", 6);
        add_number(&packet, error);
        add_field(&packet, 's', "the kernel refused it", 21);
        tell(control, &packet);
        leave(EXIT_NOT_RUN);
    }
    error = -run(argv, environ);
    add(&packet, "X", 1);
    add_number(&packet, error);
    add_field(&packet, 's', words_for(error), length_of(words_for(error)));
    tell(control, &packet);
    leave(error == ENOENT_ ? EXIT_NOT_FOUND : EXIT_NOT_RUN);
}

/* A few at a time: processes that come and go without end must not keep us from the connection. Are there more? */
static int reap(int control, int command) {
    for (int reaped = 0; reaped < MOST_REAPED; reaped++) {
        int status;
        int pid = (int)CALL4(NR_wait4, -1, &status, WNOHANG_ | WUNTRACED_, 0);
        if (pid <= 0) return 0;
        if (pid != command) continue;
        if ((status & 0xff) == 0x7f) { /* the run stops with it, and nothing may go on meanwhile */
            CALL2(NR_kill, -1, SIGSTOP_);
            tell_number(control, 'T', (status >> 8) & 0xff);
        } else {
            tell_number(control, 'D', status);
            leave(0);
        }
    }
    return 1;
}

static void pass(int command, int terminal, int number) {
    if (number == SIGCONT_) CALL2(NR_kill, -1, SIGCONT_);
    else CALL2(NR_kill, terminal >= 0 && number == SIGTSTP_ ? -command : command, number);
}

/* Before there is a command. It is the same user, and may set our limits: with few descriptors allowed, poll would refuse
   to wait, and no more could be opened. */
static int open_watch(int control, int signals) {
    struct event of_control = {POLLIN_, control}, of_signals = {POLLIN_, signals};
    int watched = (int)CALL1(NR_epoll_create1, CLOEXEC_);
    if (CALL4(NR_epoll_ctl, watched, EPOLL_CTL_ADD_, control, &of_control) < 0) leave(EXIT_LOST);
    if (CALL4(NR_epoll_ctl, watched, EPOLL_CTL_ADD_, signals, &of_signals) < 0) leave(EXIT_LOST);
    return watched;
}

static void take_word(int control, int command, int terminal) {
    char bytes[MAX_PACKET];
    word count = receive(control, bytes, 0);
    if (count <= 0) leave(EXIT_LOST);
    int number = signal_in(bytes, count);
    if (number) pass(command, terminal, number);
}

static void take_signal(int signals, int command, int terminal) {
    int bytes[128 / sizeof(int)];
    if (CALL3(NR_read, signals, bytes, sizeof bytes) == sizeof bytes && bytes[0] != SIGCHLD_) pass(command, terminal, bytes[0]);
}

/* Whatever else there is to do, the connection is looked at in every turn. Who is flooded with other signals is not told
   of SIGCHLD, so that any of them makes us look. */
static void watch(int watched, int control, int signals, int command, int terminal) {
    struct event events[2];
    int has_more = 0;
    for (;;) {
        word count = call(NR_epoll_pwait, watched, (word)events, 2, has_more ? 0 : -1, 0, 8);
        if (count < 0 && count != -EINTR_) leave(EXIT_LOST);
        int has_signal = 0;
        for (word i = 0; i < count; i++) {
            if ((int)events[i].data == control) take_word(control, command, terminal);
            else has_signal = 1;
        }
        if (has_signal) take_signal(signals, command, terminal);
        if (has_signal || has_more) has_more = reap(control, command);
    }
}

__attribute__((used)) void live(word *stack) {
    word argc = *stack;
    char **argv = (char **)(stack + 1), **environ = argv + argc + 1;
    char bytes[MAX_PACKET];
    struct rights rights;
    struct action ignore;
    unsigned long all = ~0ul;
    if (argc < 3) leave(EXIT_NOT_RUN);
    CALL2(NR_prctl, PR_SET_DUMPABLE_, 0); /* the command is the same user: it must not get at the connection */
    settle_descriptors();
    CALL4(NR_rt_sigprocmask, SIG_SETMASK_, &all, 0, 8);
    int signals = (int)CALL4(NR_signalfd4, -1, &all, 8, CLOEXEC_);
    if (signals < 0) leave(EXIT_LOST);
    int control = wait_for_runner(argv[1]);
    struct packet ready = {{'r'}, 1};
    tell(control, &ready);
    if (receive(control, bytes, &rights) != 1 || bytes[0] != 'g') leave(EXIT_LOST);
    size count = count_of(&rights);
    if (count < 3) leave(EXIT_LOST);
    int terminal = count > 3 ? rights.descriptors[3] : -1;
    memset(&ignore, 0, sizeof ignore);
    ignore.handler = (void *)1;
    CALL4(NR_rt_sigaction, SIGTTOU_, &ignore, 0, 8);
    CALL1(NR_setsid, 0);
    if (terminal >= 0) CALL3(NR_ioctl, terminal, TIOCSCTTY_, 0);
    int watched = open_watch(control, signals);
    int command = (int)call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0);
    if (command < 0) leave(EXIT_LOST);
    if (command == 0) become_command(control, rights.descriptors, terminal, argv + 2, environ);
    for (int i = 0; i < 3; i++) {
        CALL1(NR_close, rights.descriptors[i]);
        CALL1(NR_close, i); /* a reader waits for the end of what the command writes, not of what we could */
    }
    watch(watched, control, signals, command, terminal);
}
