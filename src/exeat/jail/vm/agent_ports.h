/* The four ports to the host, and the frames on the first of them: kind (1 byte), three zeros, length of the payload
   (4 bytes, little-endian), payload. exeat/jail/vm/protocol.py has the same. */

enum { CONTROL, IN, OUT, ERR, PORTS };
enum { START = 1, SIGNAL = 2, WINDOW = 3, INPUT_END = 4, END = 5 };
enum { HELLO = 65, RUNNING = 66, FAILED = 67, STOPPED = 68, EXITED = 69, EXEC_FAILED = 70 };
enum { NONE = 0, GONE = -1, WRONG = -2, VERSION = 1, HEAD = 8, MAX_TOLD = 1024, EXIT_LOST = 1 };
enum { PORTS_MS = 10000, OPEN_MS = 300, HEARD_MS = 2000, RB_POWER_OFF_ = 0x4321fedc };

static const char *const PORT_NAMES[PORTS] = {"exeat.control\n", "exeat.in\n", "exeat.out\n", "exeat.err\n"};
static int ports[PORTS] = {-1, -1, -1, -1};
static int is_guest; /* else a process of its own namespace, with ports that were opened for it: a test */
static int is_service; /* of a system with a first process of its own, which has started us */
static char incoming[HEAD + MAX_START + 1];
static size received;

static void leave(int status) {
    for (;;) CALL1(NR_exit_group, status);
}

static void power_off(void) {
    if (!is_guest) leave(0);
    for (;;) {
        CALL4(NR_reboot, 0xfee1dead, 0x28121969, RB_POWER_OFF_, 0);
        sleep_ms(1000);
    }
}

static int open_port(const char *device, const char *name) {
    struct text path;
    for (int i = 0; i < PORTS; i++)
        if (ports[i] < 0 && is_same(name, PORT_NAMES[i]))
            return (ports[i] = (int)open_file(joined(&path, "/dev/", device, ""), O_RDWR_ | O_NONBLOCK_)) >= 0;
    return 0;
}

/* The host names them one after the other, some time after the driver is there. */
static void open_ports(void) {
    word limit = now_ms() + PORTS_MS;
    for (int found = 0; found < PORTS; sleep_ms(1)) {
        struct folder folder;
        const char *device;
        if (now_ms() > limit) {
            note("the ports exeat.control, .in, .out and .err are not all there", "", 0);
            power_off();
        }
        open_folder(&folder, "/sys/class/virtio-ports");
        while ((device = next_name(&folder))) {
            char name[32];
            struct text path;
            word count = read_whole(joined(&path, "/sys/class/virtio-ports/", device, "/name"), name, sizeof name - 1);
            name[count > 0 ? count : 0] = 0;
            found += open_port(device, name);
        }
        if (found == PORTS) return;
    }
}

/* A port is hung up until the driver has heard that the host has it open. `wait_ms` < 0: for ever */
static void await_host(int port, word wait_ms) {
    struct wait wait = {ports[port], 0, 0};
    word limit = now_ms() + wait_ms;
    while (wait_for(&wait, 1, 0) == 1 && (wait.found & POLLHUP_) && (wait_ms < 0 || now_ms() < limit)) sleep_ms(1);
}

/* To the host */

static void put_number(char *to, unsigned long number, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (char)(number >> 8 * i);
}

static unsigned long number_at(const char *from, int bytes) {
    unsigned long number = 0;
    for (int i = bytes - 1; i >= 0; i--) number = number << 8 | (unsigned char)from[i];
    return number;
}

struct frame { size length; char bytes[HEAD + MAX_TOLD]; };

static struct frame frame_of(int kind) {
    struct frame frame;
    memset(frame.bytes, 0, HEAD);
    frame.bytes[0] = (char)kind;
    frame.length = HEAD;
    return frame;
}

static void add_to(struct frame *frame, unsigned long number, int bytes) {
    put_number(frame->bytes + frame->length, number, bytes);
    frame->length += (size)bytes;
}

/* Waits until there is room; a host that has hung up hears nothing. */
static void tell(struct frame *frame) {
    size at = 0;
    put_number(frame->bytes + 4, frame->length - HEAD, 4);
    while (at < frame->length) {
        struct wait wait = {ports[CONTROL], POLLOUT_, 0};
        word count = CALL3(NR_write, ports[CONTROL], frame->bytes + at, frame->length - at);
        if (count > 0) at += (size)count;
        else if (count != -EAGAIN_ && count != -EINTR_) return;
        else if (wait_for(&wait, 1, -1) == 1 && wait.found & (POLLHUP_ | POLLERR_)) return;
    }
}

static void tell_number(int kind, unsigned long number, int bytes) {
    struct frame frame = frame_of(kind);
    add_to(&frame, number, bytes);
    tell(&frame);
}

/* From the host */

static int is_right(int kind, size length) {
    switch (kind) {
    case START: return length <= MAX_START;
    case SIGNAL: return length == 1;
    case WINDOW: return length == 4;
    case INPUT_END: return length == 8;
    case END: return length == 0;
    default: return 0;
    }
}

/* The kind of a frame that is whole, its payload in `incoming` until the next call; NONE yet, GONE or WRONG. */
static int next_frame(size *length) {
    for (;;) {
        size wanted = HEAD;
        if (received >= HEAD) {
            *length = number_at(incoming + 4, 4);
            if (number_at(incoming + 1, 3) || !is_right(incoming[0], *length)) return WRONG;
            wanted += *length;
            if (received == wanted) {
                received = 0;
                return incoming[0];
            }
        }
        word count = CALL3(NR_read, ports[CONTROL], incoming + received, wanted - received);
        if (count == -EAGAIN_ || count == -EINTR_) return NONE;
        if (count <= 0) return GONE;
        received += (size)count;
    }
}

/* Whoever powers off takes with him what the host has not read yet: it is asked first. 0: it does not matter so much. */
static void await_end(int has_bytes) {
    word limit = now_ms() + HEARD_MS;
    for (;;) {
        struct wait wait = {ports[CONTROL], POLLIN_, 0};
        size length;
        word left = limit - now_ms();
        if (!has_bytes && left <= 0) return;
        wait_for(&wait, 1, has_bytes ? -1 : left);
        int kind = next_frame(&length);
        if (kind == END || kind == GONE || kind == WRONG) return;
    }
}

/* What cannot be done, in words and as a number of the kernel's */
static void fail(word error, const char *what, const char *which) {
    struct frame frame = frame_of(FAILED);
    struct text text;
    joined(&text, what, which, "");
    note(text.bytes, "", error);
    add_to(&frame, (unsigned long)(error < 0 ? -error : error), 4);
    for (size i = 0; i < text.length && frame.length < sizeof frame.bytes; i++) frame.bytes[frame.length++] = text.bytes[i];
    tell(&frame);
    await_end(0);
    power_off();
}

static void need(word result, const char *what, const char *which) {
    if (result < 0) fail(result, what, which);
}
