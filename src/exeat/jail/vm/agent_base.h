/* The kernel, text and files, for a program without a C library. */

#include "../container/bare.h"

enum {
    NR_open = 2, NR_lstat = 6, NR_shutdown = 48, NR_setsockopt = 54, NR_fcntl = 72, NR_chdir = 80, NR_mkdir = 83, NR_unlink = 87,
    NR_symlink = 88, NR_readlink = 89, NR_fchmod = 91, NR_fchown = 93, NR_umask = 95, NR_setgroups = 116, NR_setresuid = 117,
    NR_setresgid = 119, NR_chroot = 161, NR_sync = 162, NR_mount = 165, NR_umount2 = 166, NR_reboot = 169, NR_sethostname = 170,
    NR_getdents64 = 217, NR_clock_settime = 227, NR_clock_gettime = 228, NR_openat = 257, NR_pipe2 = 293, NR_prlimit64 = 302,
    NR_finit_module = 313
};
enum {
    ENOENT_ = 2, EINTR_ = 4, ENXIO_ = 6, EAGAIN_ = 11, EACCES_ = 13, EEXIST_ = 17, ENODEV_ = 19, ENOTDIR_ = 20, EINVAL_ = 22,
    ENAMETOOLONG_ = 36, EPROTO_ = 71, EAFNOSUPPORT_ = 97, EOPNOTSUPP_ = 95, ETIMEDOUT_ = 110
};
enum {
    SIGHUP_ = 1, SIGKILL_ = 9, SIGTERM_ = 15, SIGCHLD_ = 17, SIGCONT_ = 18, SIGSTOP_ = 19, SIGTSTP_ = 20, SIGTTOU_ = 22, SIG_SETMASK_ = 2
};
enum { POLLIN_ = 1, POLLOUT_ = 4, POLLERR_ = 8, POLLHUP_ = 16, POLLNVAL_ = 32 };
enum {
    O_RDONLY_ = 0, O_WRONLY_ = 1, O_RDWR_ = 2, O_CREAT_ = 0100, O_NOCTTY_ = 0400, O_TRUNC_ = 01000, O_NONBLOCK_ = 04000,
    O_DIRECTORY_ = 0200000, CLOEXEC_ = 02000000, O_PATH_ = 010000000
};
enum { F_GETFD_ = 1, F_SETFD_ = 2, F_GETFL_ = 3, F_SETFL_ = 4, CLOCK_REALTIME_ = 0, CLOCK_MONOTONIC_ = 1 };
enum { MAX_PATH = 4096, MS = 1000000 };

struct wait { int descriptor; short events, found; };
struct moment { word seconds, nanoseconds; };
struct action { void *handler; unsigned long flags; void *restorer; unsigned long mask; };

/* Text */

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

static int is_same(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

/* What follows `start` in `text`, or 0 */
static const char *after(const char *text, const char *start) {
    while (*start)
        if (*text++ != *start++) return 0;
    return text;
}

static int is_before(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return (unsigned char)*one < (unsigned char)*other;
}

/* A number at the start of `*text`, which is moved behind it. -1: there is none, or it is larger than any we are told. */
static word take_number(const char **text, int base) {
    const char *at = *text;
    word number = 0;
    for (; *at >= '0' && *at < '0' + base; at++) {
        if (number >> 40) return -1;
        number = number * base + (*at - '0');
    }
    if (at == *text) return -1;
    *text = at;
    return number;
}

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The bytes that `hex` stands for take its place. How many, or -1. */
static word decode_hex(char *hex) {
    word count = 0;
    for (; hex[2 * count]; count++) {
        int high = hex_digit(hex[2 * count]), low = hex[2 * count + 1] ? hex_digit(hex[2 * count + 1]) : -1;
        if (high < 0 || low < 0) return -1;
        hex[count] = (char)(high << 4 | low);
    }
    return count;
}

/* Text that is put together; what is too long for it is cut off. */
struct text { size length; char bytes[MAX_PATH + 256]; };

static void add(struct text *text, const char *more) {
    while (*more && text->length < sizeof text->bytes - 1) text->bytes[text->length++] = *more++;
    text->bytes[text->length] = 0;
}

static void add_number(struct text *text, word number) {
    char reversed[24], digit[2] = {0, 0};
    int count = 0;
    if (number < 0) add(text, "-");
    unsigned long left = number < 0 ? -(unsigned long)number : (unsigned long)number;
    do reversed[count++] = (char)('0' + left % 10);
    while (left /= 10);
    while (count) {
        digit[0] = reversed[--count];
        add(text, digit);
    }
}

static const char *joined(struct text *text, const char *one, const char *two, const char *three) {
    text->length = 0;
    add(text, one);
    add(text, two);
    add(text, three);
    return text->bytes;
}

/* For whoever looks at the console of a guest that does not start */
static void note(const char *what, const char *which, word error) {
    struct text text;
    joined(&text, "exeat: ", what, which);
    if (error) {
        add(&text, ": error ");
        add_number(&text, error < 0 ? -error : error);
    }
    add(&text, "\n");
    CALL3(NR_write, 2, text.bytes, text.length);
}

/* Time */

static word now_ms(void) {
    struct moment moment = {0, 0};
    CALL2(NR_clock_gettime, CLOCK_MONOTONIC_, &moment);
    return moment.seconds * 1000 + moment.nanoseconds / MS;
}

/* `wait_ms` < 0: for ever */
static word wait_for(struct wait *waits, size count, word wait_ms) {
    struct moment limit = {wait_ms / 1000, wait_ms % 1000 * MS};
    return call(NR_ppoll, (word)waits, (word)count, wait_ms < 0 ? 0 : (word)&limit, 0, 8, 0);
}

static void sleep_ms(word duration) {
    wait_for(0, 0, duration);
}

/* Files */

static word open_file(const char *path, int how) {
    return CALL3(NR_open, path, how | CLOEXEC_ | O_NOCTTY_, 0);
}

/* As much as there is room for. How many bytes, or an error. */
static word read_whole(const char *path, char *bytes, size room) {
    word file = open_file(path, O_RDONLY_), count = 0;
    size length = 0;
    if (file < 0) return file;
    while (length < room && (count = CALL3(NR_read, file, bytes + length, room - length)) > 0) length += (size)count;
    CALL1(NR_close, file);
    return count < 0 ? count : (word)length;
}

static word write_whole(word file, const char *bytes, size count) {
    while (count) {
        word written = CALL3(NR_write, file, bytes, count);
        if (written == -EINTR_) continue;
        if (written <= 0) return written ? written : -EINVAL_;
        bytes += written;
        count -= (size)written;
    }
    return 0;
}

static word write_file(const char *path, const char *text) {
    word file = open_file(path, O_WRONLY_);
    if (file < 0) return file;
    word error = write_whole(file, text, length_of(text));
    CALL1(NR_close, file);
    return error;
}

static int is_there(const char *path) {
    char status[144];
    return CALL2(NR_lstat, path, status) >= 0;
}

/* A folder that is being listed */
struct folder { word descriptor, at, end; char entries[4096] __attribute__((aligned(8))); };

static word open_folder(struct folder *folder, const char *path) {
    folder->at = folder->end = 0;
    return folder->descriptor = open_file(path, O_RDONLY_ | O_DIRECTORY_);
}

/* The next name; at the end 0, and the folder is closed */
static const char *next_name(struct folder *folder) {
    for (;;) {
        if (folder->at >= folder->end) {
            folder->at = 0;
            folder->end = folder->descriptor < 0 ? 0 : CALL3(NR_getdents64, folder->descriptor, folder->entries, sizeof folder->entries);
            if (folder->end <= 0) {
                CALL1(NR_close, folder->descriptor);
                return 0;
            }
        }
        const char *entry = folder->entries + folder->at; /* inode, offset, length of the entry, kind, name */
        folder->at += *(const unsigned short *)(entry + 16);
        if (entry[19] != '.') return entry + 19;
    }
}

/* Folders on the way to `path`, and itself if `is_folder` */
static void make_folders(const char *path, int is_folder) {
    struct text part = {0, {0}};
    for (; *path && part.length < MAX_PATH; path++) {
        char one[2] = {*path, 0};
        if (*path == '/' && part.length) CALL2(NR_mkdir, part.bytes, 0755);
        add(&part, one);
    }
    if (is_folder) CALL2(NR_mkdir, part.bytes, 0755);
}
