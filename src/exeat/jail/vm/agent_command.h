/* The command: who it is, what it has open, and how it is found. */

enum { PR_SET_DUMPABLE_ = 4, PR_SET_CHILD_SUBREAPER_ = 36, TIOCSCTTY_ = 0x540E, TIOCSPGRP_ = 0x5410, TIOCSWINSZ_ = 0x5414, RLIMIT_NOFILE_ = 7, MAX_GROUPS = 256 };
enum { TIOCGPTN_ = (int)0x80045430, TIOCSPTLCK_ = 0x40045431, TTY_GROUP = 5, MOST_FILES = 524288, FEW_FILES = 1024 };

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/* What it is told: every "arg=" and "env=" takes five bytes and more */
static char *argv[MAX_START / 5 + 2], *environ[MAX_START / 5 + 2];

/* Where the command's streams are: pipes, or a terminal for all three */
struct streams { int of_command[3], of_agent[3], terminal; };

/* How far it got: what it says on its last way out */
enum { AT_EXEC, AT_TERMINAL, AT_USER, AT_FOLDER };
static const char *const STEPS[] = {
    "", "the command cannot have its terminal", "the command cannot be run as this user: ", "the command cannot start in "};
struct refusal { int step, error; };

static void list_values(const char *key, char **list) {
    struct values values = values_of(key);
    while ((*list = next_value(&values))) list++;
}

static const char *variable(const char *name) {
    for (char **each = environ; *each; each++) {
        const char *value = after(*each, name);
        if (value) return value;
    }
    return 0;
}

/* As execvp does, by the command's own PATH. A folder that may not be entered says nothing about the command. */
static word execute(void) {
    const char *name = argv[0], *folders = variable("PATH=");
    word refused = 0;
    for (const char *at = name; *at; at++)
        if (*at == '/') return CALL3(NR_execve, name, argv, environ);
    if (!folders || !*folders) folders = DEFAULT_PATH;
    while (*name) {
        struct text path = {0, {0}};
        size length = 0;
        for (; folders[length] && folders[length] != ':'; length++) {
            char one[2] = {folders[length], 0};
            add(&path, one);
        }
        if (length) add(&path, "/");
        add(&path, name);
        if (length + length_of(name) + 2 <= MAX_PATH) {
            word error = -CALL3(NR_execve, path.bytes, argv, environ);
            if (error != ENOENT_ && error != ENOTDIR_ && !refused && is_there(path.bytes)) refused = error;
        }
        if (!folders[length]) break;
        folders += length + 1;
    }
    return refused ? -refused : -ENOENT_;
}

static word become_user(void) {
    unsigned groups[MAX_GROUPS];
    size count = 0;
    struct { unsigned long soft, hard; } files = {FEW_FILES, MOST_FILES};
    word uid = number_of("uid", 10), gid = number_of("gid", 10);
    const char *at = value_of("groups");
    if (uid < 0 || gid < 0) return -EINVAL_;
    while (at && *at && count < MAX_GROUPS) {
        word group = take_number(&at, 10);
        if (group < 0 || (*at && *at++ != ',')) return -EINVAL_;
        groups[count++] = (unsigned)group;
    }
    write_file("/proc/self/oom_score_adj", "0");
    CALL4(NR_prlimit64, 0, RLIMIT_NOFILE_, &files, 0);
    word error = CALL2(NR_setgroups, count, groups);
    if (!error) error = CALL3(NR_setresgid, gid, gid, gid);
    return error ? error : CALL3(NR_setresuid, uid, uid, uid);
}

static void give_up(int channel, int step, word error) {
    struct refusal refusal = {step, (int)-error};
    CALL3(NR_write, channel, &refusal, sizeof refusal);
    leave(EXIT_LOST);
}

static void become_command(const struct streams *streams, int channel) {
    struct action action;
    unsigned long none = 0;
    int own = (int)CALL1(NR_getpid, 0);
    word mask = number_of("umask", 8), error = 0;
    const char *cwd = value_of("cwd");
    if (streams->terminal >= 0) {
        CALL2(NR_setpgid, 0, 0);
        error = CALL3(NR_ioctl, streams->of_command[0], TIOCSPGRP_, &own);
    } else {
        CALL1(NR_setsid, 0);
    }
    for (int i = 0; i < 3 && error >= 0; i++) error = CALL3(NR_dup3, streams->of_command[i], i, 0);
    if (error < 0) give_up(channel, AT_TERMINAL, error);
    memset(&action, 0, sizeof action);
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL_ && number != SIGSTOP_) CALL4(NR_rt_sigaction, number, &action, 0, 8);
    CALL4(NR_rt_sigprocmask, SIG_SETMASK_, &none, 0, 8);
    if (is_guest && (error = become_user()) < 0) give_up(channel, AT_USER, error);
    CALL1(NR_umask, mask >= 0 ? mask & 0777 : 022);
    if (cwd && (error = CALL1(NR_chdir, cwd)) < 0) give_up(channel, AT_FOLDER, error);
    give_up(channel, AT_EXEC, execute());
}

/* Streams */

/* Whoever opens /dev/stdout opens the pipe once more, as the user that the command is. */
static void give_to_user(word descriptor, word group) {
    word uid = number_of("uid", 10);
    if (is_guest && uid >= 0) CALL3(NR_fchown, descriptor, uid, group);
}

static struct streams open_pipes(void) {
    struct streams streams;
    for (int i = 0; i < 3; i++) {
        int ends[2];
        need(CALL2(NR_pipe2, ends, CLOEXEC_), "no pipe for the command", "");
        streams.of_command[i] = ends[i != 0];
        streams.of_agent[i] = ends[i == 0];
        CALL3(NR_fcntl, streams.of_agent[i], F_SETFL_, O_NONBLOCK_);
        give_to_user(ends[0], number_of("gid", 10));
    }
    streams.terminal = -1;
    return streams;
}

static void set_window(int terminal, unsigned rows, unsigned columns) {
    unsigned short window[4] = {(unsigned short)rows, (unsigned short)columns, 0, 0};
    CALL3(NR_ioctl, terminal, TIOCSWINSZ_, window);
}

/* We lead its session, as a shell would: without a parent in its session the command could not be stopped (Ctrl-Z). */
static struct streams open_terminal(const char *said) {
    struct streams streams;
    struct text path = {0, {0}};
    struct action ignore;
    int number = 0, unlocked = 0;
    const char *at = said;
    word rows = take_number(&at, 10), columns = *at++ == 'x' ? take_number(&at, 10) : -1;
    if (rows < 0 || columns < 0 || *at) fail(EINVAL_, "this is no size of a terminal: ", said);
    word terminal = open_file("/dev/ptmx", O_RDWR_ | O_NONBLOCK_);
    need(terminal, "no terminal for the command", "");
    CALL3(NR_ioctl, terminal, TIOCSPTLCK_, &unlocked);
    need(CALL3(NR_ioctl, terminal, TIOCGPTN_, &number), "no terminal for the command", "");
    add(&path, "/dev/pts/");
    add_number(&path, number);
    word own = open_file(path.bytes, O_RDWR_);
    need(own, "the command's terminal cannot be opened: ", path.bytes);
    give_to_user(own, TTY_GROUP);
    set_window((int)terminal, (unsigned)rows, (unsigned)columns);
    memset(&ignore, 0, sizeof ignore);
    ignore.handler = (void *)1;
    CALL4(NR_rt_sigaction, SIGTTOU_, &ignore, 0, 8);
    CALL1(NR_setsid, 0);
    need(CALL3(NR_ioctl, own, TIOCSCTTY_, 0), "the command's terminal cannot be taken", "");
    for (int i = 0; i < 3; i++) {
        streams.of_command[i] = (int)own;
        streams.of_agent[i] = (int)terminal;
    }
    streams.terminal = (int)terminal;
    return streams;
}

/* The command's process, when it has become the command */
static int start_command(struct streams *streams) {
    struct refusal refusal;
    int ends[2];
    const char *terminal = value_of("terminal");
    list_values("arg", argv);
    list_values("env", environ);
    if (!argv[0]) fail(EINVAL_, "the host names no command", "");
    *streams = terminal ? open_terminal(terminal) : open_pipes();
    need(CALL2(NR_pipe2, ends, CLOEXEC_), "no pipe for the command", "");
    word command = call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0);
    need(command, "no process for the command", "");
    if (command == 0) become_command(streams, ends[1]);
    CALL1(NR_close, ends[1]);
    if (!terminal) for (int i = 0; i < 3; i++) CALL1(NR_close, streams->of_command[i]);
    word count;
    do count = CALL3(NR_read, ends[0], &refusal, sizeof refusal);
    while (count == -EINTR_);
    CALL1(NR_close, ends[0]);
    if (count != sizeof refusal) return (int)command;
    if (refusal.step != AT_EXEC) {
        const char *which = refusal.step == AT_USER ? value_of("uid") : refusal.step == AT_FOLDER ? value_of("cwd") : "";
        fail(refusal.error, STEPS[refusal.step], which ? which : "");
    }
    tell_number(EXEC_FAILED, (unsigned long)refusal.error, 4);
    await_end(0);
    power_off();
    return -1;
}
