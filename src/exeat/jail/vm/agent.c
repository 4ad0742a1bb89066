/* Process 1 of a guest, from exeat's initramfs: it makes the guest what the host says, runs one command, passes its
   streams and signals, and powers off. It needs nothing of the guest's files: no libc, no shell.

   Its ports to the host are virtio ports with names: exeat.control for frames (agent_ports.h), exeat.in, exeat.out and
   exeat.err for bytes as they are. HELLO, then it waits for START; RUNNING, FAILED or EXEC_FAILED; at the end EXITED, with
   how many bytes were written. It powers off when the host says END or hangs up: what the host has not read by then is
   lost with the machine.

   Whoever starts it with ports that are open already, from descriptor 3 on, gets the command, the streams and the signals
   on this machine, in a process namespace of its own: that is how it is tested. In a guest the kernel starts it, and has
   nothing open but the console. `scripts/build-init` builds it. */

#include "agent_base.h"

#include "agent_settings.h"

#include "agent_ports.h"

#include "agent_net.h"

#include "agent_relay.h"

#include "agent_mounts.h"

#include "agent_command.h"

#include "agent_forget.h"

#include "agent_watch.h"

enum { FIRST_PORT = 3, RNDADDENTROPY_ = 0x40085203, RNDRESEEDCRNG_ = 0x5207, MAX_ENTROPY = 512, GONE_MS = 5 };

/* Before the word to start */

static void take_ports(void) {
    for (int i = 0; i < PORTS; i++) {
        ports[i] = FIRST_PORT + i;
        CALL3(NR_fcntl, ports[i], F_SETFD_, 1);
        if (CALL3(NR_fcntl, ports[i], F_SETFL_, O_RDWR_ | O_NONBLOCK_) < 0) leave(EXIT_LOST);
    }
}

/* A kernel that found no console has opened nothing; what we open must not be taken for a standard stream. */
static void settle_descriptors(void) {
    while (CALL3(NR_fcntl, 2, F_GETFD_, 0) < 0)
        if (open_file("/dev/null", O_RDWR_) < 0) return;
}

static void take_start(size length) {
    char *text = incoming + HEAD;
    if (!length || text[length - 1]) fail(EPROTO_, "the word to start does not end as it should", "");
    from_start = (struct settings){text, text + length};
}

/* A guest that is started from a snapshot has lost one host, and finds another. */
static void await_start(void) {
    for (;;) {
        struct wait wait = {ports[CONTROL], POLLIN_, 0};
        size length;
        wait_for(&wait, 1, -1);
        switch (next_frame(&length)) {
        case START: take_start(length); return;
        case END: power_off(); return;
        case WRONG: fail(EPROTO_, "the host sent what is no frame", ""); return;
        case GONE:
            if (!is_guest) leave(EXIT_LOST);
            received = 0;
            sleep_ms(GONE_MS);
        }
    }
}

/* What the host says */

static void set_clock(void) {
    const char *at = value_of("time");
    if (!at) return;
    struct moment moment = {take_number(&at, 10), 0};
    if (*at == '.') at++, moment.nanoseconds = take_number(&at, 10);
    if (moment.seconds < 0 || moment.nanoseconds < 0 || *at) fail(EINVAL_, "this is no time: ", value_of("time"));
    need(CALL2(NR_clock_settime, CLOCK_REALTIME_, &moment), "the clock cannot be set", "");
}

/* Without it, machines from one snapshot would all make up the same secrets. */
static void add_entropy(void) {
    struct { int bits, length; char bytes[MAX_ENTROPY]; } pool;
    char *hex = value_of("entropy");
    if (!hex) return;
    word count = decode_hex(hex), device = open_file("/dev/urandom", O_WRONLY_);
    if (count < 0 || count > MAX_ENTROPY) fail(EINVAL_, "the host's entropy is not in hex, or too much", "");
    memcpy(pool.bytes, hex, (size)count);
    pool.length = (int)count;
    pool.bits = (int)count * 8;
    need(CALL3(NR_ioctl, device, RNDADDENTROPY_, &pool), "no entropy can be added", "");
    CALL3(NR_ioctl, device, RNDRESEEDCRNG_, 0);
    CALL1(NR_close, device);
}

static void prepare_guest(void) {
    const char *hostname = value_of("hostname");
    if (number_of("version", 10) != VERSION) fail(EINVAL_, "host and guest are of different versions of exeat", "");
    set_clock();
    add_entropy();
    if (hostname) need(CALL2(NR_sethostname, hostname, length_of(hostname)), "this is no host name: ", hostname);
    set_card();
    mount_root();
    enter_root();
    make_home();
    mount_others();
    set_resolver();
    name_user();
    place_files();
    trust_authority();
    start_relays();
    watch_known_files();
}

/* Process 1 waits for the end of the rest of us: to the kernel, a child of process 1 has no parent that could let it go on
   when it has stopped, so Ctrl-Z would do nothing. What is orphaned is ours. */
static void stand_behind(void) {
    word own = call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0);
    need(own, "no process for the agent", "");
    if (own == 0) {
        CALL2(NR_prctl, PR_SET_CHILD_SUBREAPER_, 1);
        write_file("/proc/self/oom_score_adj", "-1000");
        return;
    }
    while (CALL4(NR_wait4, -1, 0, 0, 0) != own) {}
    power_off();
}

/* A system that has booted by itself has seen to its name, network and root. */
static void prepare_service(void) {
    if (number_of("version", 10) != VERSION) fail(EINVAL_, "host and guest are of different versions of exeat", "");
    CALL2(NR_prctl, PR_SET_CHILD_SUBREAPER_, 1);
    set_clock();
    make_folders("/run/exeat", 1);
    mount("exeat", "/run/exeat", "tmpfs", MS_NOSUID_ | MS_NODEV_, "mode=755");
    need(store = open_file("/run/exeat", O_PATH_ | O_DIRECTORY_), "no folder for files of the guest's own", "");
    make_home();
    mount_others();
    name_user();
    place_files();
    trust_authority();
    start_relays();
    watch_known_files();
}

__attribute__((used)) void live(word *stack) {
    unsigned long all = ~0ul;
    is_service = stack[0] == 2 && is_same((const char *)stack[2], "service");
    if (CALL1(NR_getpid, 0) != 1 && !is_service) leave(EXIT_LOST); /* it is going to kill every process that it sees */
    is_guest = is_service || CALL3(NR_fcntl, FIRST_PORT, F_GETFD_, 0) < 0;
    CALL2(NR_prctl, PR_SET_DUMPABLE_, 0);
    CALL4(NR_rt_sigprocmask, SIG_SETMASK_, &all, 0, 8);
    if (is_guest) {
        CALL1(NR_umask, 0);
        if (!is_service) {
            mount_kernel_files();
            settle_descriptors();
            load_modules("/modules");
        }
        read_firmware();
        if (is_service && !value_of("version")) leave(EXIT_LOST); /* on no guest of ours: it would be powered off */
        open_ports();
    } else {
        take_ports();
    }
    signals = (int)CALL4(NR_signalfd4, -1, &all, 8, CLOEXEC_ | O_NONBLOCK_);
    if (signals < 0) leave(EXIT_LOST);
    await_host(CONTROL, -1);
    if (is_guest && !is_service) { /* before HELLO: what a saved machine is to have already */
        furnish_devices();
        raise_loopback();
        set_card();
    }
    tell_number(HELLO, VERSION, 4);
    await_start();
    if (is_service) {
        prepare_service();
    } else if (is_guest) {
        prepare_guest();
        stand_behind();
    }
    for (int i = IN; i < PORTS; i++)
        if (i != ERR || !value_of("terminal")) await_host(i, OPEN_MS);
    command = start_command(&of_command);
    struct frame running = frame_of(RUNNING);
    tell(&running);
    watch();
}
