/* While the command runs: bytes, signals, and its end. Each stream has room for one piece. What the host does not take
   stays in the pipe, and whoever writes to it waits; no stream waits for another. */

enum { WNOHANG_ = 1, WUNTRACED_ = 2, MOST_REAPED = 64, GRACE_MS = 2000, TCGETS_ = 0x5401, TIOCGPGRP_ = 0x540F, ICANON_ = 2, VEOF_ = 4, ROOM = 32768 };

struct stream {
    int from, to; /* -1: closed */
    size start, end; /* of what has been read and not yet written */
    unsigned long read, written;
    char bytes[ROOM];
};

static struct stream in, out, err;
static struct streams of_command;
static int command, signals, is_over, status, stopped_by;
static word kill_at = -1; /* when those that were asked to end are made to */
static unsigned long input_length = ~0ul;
static int input_has_ended;
static char last_typed = '\n';

static void shut(int *descriptor) {
    if (*descriptor >= 0 && *descriptor != of_command.terminal) CALL1(NR_close, *descriptor);
    *descriptor = -1;
}

/* We have the command's side of it open, too, so that it does not hang up when no process has it. */
static void leave_terminal(void) {
    if (of_command.terminal >= 0 && of_command.of_command[0] >= 0) CALL1(NR_close, of_command.of_command[0]);
    of_command.of_command[0] = -1;
}

static void hang_up(int group) {
    CALL2(NR_kill, -group, SIGHUP_);
    CALL2(NR_kill, -group, SIGCONT_);
}

/* The host takes no more: the command is to notice, by SIGPIPE or by a terminal that hangs up. */
static void break_off(struct stream *stream) {
    stream->to = -1; /* ports stay open: they could not be opened twice */
    stream->start = stream->end = 0;
    shut(&stream->from);
    if (of_command.terminal >= 0) {
        int foreground = 0; /* the kernel tells the leader of the session alone, and that is us */
        CALL3(NR_ioctl, of_command.terminal, TIOCGPGRP_, &foreground);
        leave_terminal();
        CALL1(NR_close, of_command.terminal);
        hang_up(command);
        if (foreground > 1 && foreground != command) hang_up(foreground);
        of_command.terminal = in.to = -1;
    }
}

/* 1: something is there now */
static int fill(struct stream *stream, size most) {
    if (stream->from < 0 || stream->end || !most) return 0;
    word count = CALL3(NR_read, stream->from, stream->bytes, most < ROOM ? most : ROOM);
    if (count > 0) {
        stream->start = 0;
        stream->end = (size)count;
        stream->read += (unsigned long)count;
    } else if (count != -EINTR_ && (count != -EAGAIN_ || is_over)) {
        shut(&stream->from);
    }
    return count > 0;
}

/* 0: no one reads it any more */
static int empty(struct stream *stream) {
    while (stream->start < stream->end) {
        word count = CALL3(NR_write, stream->to, stream->bytes + stream->start, stream->end - stream->start);
        if (count == -EAGAIN_ || count == -EINTR_) return 1;
        if (count <= 0) return 0;
        stream->start += (size)count;
        stream->written += (unsigned long)count;
    }
    stream->start = stream->end = 0;
    return 1;
}

static void pass_output(struct stream *stream) {
    if (stream->to < 0) return;
    fill(stream, ROOM);
    if (!empty(stream)) break_off(stream);
}

/* A pipe ends by being closed. A terminal has a character for it, unless a program reads every key itself; it ends the
   line first if there is something in it. */
static void end_input(void) {
    struct { unsigned input, output, control, local; unsigned char discipline, characters[19]; } settings;
    in.from = -1;
    if (of_command.terminal < 0) {
        shut(&in.to);
    } else if (CALL3(NR_ioctl, of_command.terminal, TCGETS_, &settings) >= 0 && settings.local & ICANON_) {
        in.bytes[0] = in.bytes[1] = (char)settings.characters[VEOF_];
        in.end = last_typed == '\n' ? 1 : 2;
        empty(&in);
    }
}

static void pass_input(void) {
    if (in.to < 0) return;
    if (fill(&in, in.read < input_length ? input_length - in.read : 0)) last_typed = in.bytes[in.end - 1];
    if (!empty(&in)) {
        in.start = in.end = 0;
        shut(&in.to); /* the command has closed it */
    } else if (!in.end && !input_has_ended && (in.from < 0 || in.read >= input_length)) {
        input_has_ended = 1;
        end_input();
    }
}

/* Processes */

/* A few at a time: processes that come and go without end must not keep us from the rest. */
enum { NO_CHILDREN, NONE_ENDED, MAYBE_MORE };

static int reap(int most) {
    for (int reaped = 0; reaped < most; reaped++) {
        int found;
        word pid = CALL4(NR_wait4, -1, &found, WNOHANG_ | WUNTRACED_, 0);
        if (pid <= 0) return pid ? NO_CHILDREN : NONE_ENDED;
        if (pid != command) continue;
        if ((found & 0xff) == 0x7f) {
            stopped_by = (found >> 8) & 0xff;
        } else {
            status = found;
            is_over = 1;
        }
    }
    return MAYBE_MORE;
}

/* All but us. They are waited for: what they have written is in the pipes then, and their files can be synchronized. */
static void kill_all(void) {
    CALL2(NR_kill, -1, SIGKILL_);
    for (word limit = now_ms() + GRACE_MS; reap(MOST_REAPED) != NO_CHILDREN && now_ms() < limit;) {
        struct wait wait = {signals, POLLIN_, 0};
        char information[128];
        if (wait_for(&wait, 1, 20) == 1) CALL3(NR_read, signals, information, sizeof information);
    }
}

static void settle_files(void) {
    if (!is_guest) return;
    CALL1(NR_sync, 0);
    if (has_disk) mount(0, "/", 0, MS_REMOUNT_ | MS_RDONLY_, 0);
}

/* As a shell does for a job, where there is a terminal */
static void pass_signal(int number) {
    int to_group = of_command.terminal >= 0 && (number == SIGCONT_ || number == SIGTSTP_);
    if (number >= 1 && number <= 64) CALL2(NR_kill, to_group ? -command : command, number);
}

static void ask_to_end(void) {
    if (kill_at >= 0) return;
    CALL2(NR_kill, -1, SIGTERM_);
    CALL2(NR_kill, -1, SIGCONT_);
    kill_at = now_ms() + GRACE_MS;
}

/* One at a time: however many there are, the rest has its turn. 0: the host wants no more of this guest. */
static int take_word(void) {
    size length;
    const char *payload = incoming + HEAD;
    switch (next_frame(&length)) {
    case NONE: return 1;
    case SIGNAL:
        if (!is_over) pass_signal((unsigned char)payload[0]);
        return 1;
    case WINDOW:
        if (of_command.terminal >= 0) set_window(of_command.terminal, (unsigned)number_at(payload, 2), (unsigned)number_at(payload + 2, 2));
        return 1;
    case INPUT_END:
        input_length = number_at(payload, 8);
        pass_input();
        return 1;
    case END:
        ask_to_end();
        return !is_over;
    case GONE: return 0;
    default:
        kill_all();
        settle_files();
        fail(EPROTO_, "the host sent what is no frame, or not at this time", "");
        return 0;
    }
}

/* The loop */

static struct wait on(int descriptor, int is_wanted, short events) {
    return (struct wait){is_wanted ? descriptor : -1, events, 0};
}

static void look_at_output(struct stream *stream, short found, short found_at_host) {
    if (found_at_host & (POLLHUP_ | POLLERR_ | POLLNVAL_)) break_off(stream);
    else if (found || found_at_host) pass_output(stream);
}

/* 0: the host wants no more of this guest */
static int take_turn(word wait_ms) {
    struct wait waits[] = {
        on(ports[CONTROL], 1, stopped_by ? POLLIN_ | POLLOUT_ : POLLIN_),
        on(signals, 1, POLLIN_),
        on(in.from, in.to >= 0 && !in.end && in.read < input_length, POLLIN_),
        on(in.to, 1, in.end ? POLLOUT_ : 0),
        on(out.from, !out.end, POLLIN_),
        on(out.to, 1, out.end ? POLLOUT_ : 0),
        on(err.from, !err.end, POLLIN_),
        on(err.to, 1, err.end ? POLLOUT_ : 0),
    };
    char information[128];
    wait_for(waits, sizeof waits / sizeof *waits, wait_ms);
    if (waits[0].found & ~POLLOUT_ && !take_word()) return 0;
    if (stopped_by && waits[0].found & POLLOUT_) {
        tell_number(STOPPED, (unsigned long)stopped_by, 1);
        stopped_by = 0;
    }
    if (waits[1].found) CALL3(NR_read, signals, information, sizeof information);
    if (waits[3].found & POLLERR_) shut(&in.to);
    else if (waits[2].found || waits[3].found) pass_input();
    look_at_output(&out, waits[4].found, waits[5].found);
    look_at_output(&err, waits[6].found, waits[7].found);
    return 1;
}

/* Until the command has ended */
static int attend(void) {
    int has_more = 1;
    while (!is_over) {
        word left = kill_at < 0 ? forgetting_wait_ms() : kill_at - now_ms();
        if (kill_at >= 0 && left <= 0) return 1;
        if (!take_turn(has_more ? 0 : left)) return 0;
        forget_files();
        has_more = reap(MOST_REAPED) == MAYBE_MORE;
    }
    return 1;
}

/* All processes are gone. Until the host has what they wrote, however slow it is. */
static int deliver(void) {
    in.to = in.from = -1;
    for (;;) {
        pass_output(&out);
        pass_output(&err);
        if (out.from < 0 && !out.end && err.from < 0 && !err.end) return 1;
        if ((out.end || out.from < 0) && (err.end || err.from < 0) && !take_turn(-1)) return 0;
    }
}

static void watch(void) {
    out.from = of_command.of_agent[1];
    out.to = ports[OUT];
    in.from = ports[IN];
    in.to = of_command.of_agent[0];
    err.from = of_command.terminal < 0 ? of_command.of_agent[2] : -1;
    err.to = of_command.terminal < 0 ? ports[ERR] : -1;
    int is_wanted = attend();
    kill_all();
    is_over = 1;
    leave_terminal();
    if (is_wanted) is_wanted = deliver();
    settle_files();
    if (!is_wanted) power_off();
    struct frame frame = frame_of(EXITED);
    add_to(&frame, (unsigned long)(unsigned)status, 4);
    add_to(&frame, out.written, 8);
    add_to(&frame, err.written, 8);
    tell(&frame);
    await_end(kill_at < 0);
    power_off();
}
