/* The guest's files: a tree that the host shares, or a disk; and what is mounted in it. */

enum {
    MS_RDONLY_ = 1, MS_NOSUID_ = 2, MS_NODEV_ = 4, MS_NOEXEC_ = 8, MS_REMOUNT_ = 32, MS_BIND_ = 4096, MS_MOVE_ = 8192,
    MODULE_INIT_IGNORE_MODVERSIONS_ = 1, MOUNT_MS = 10000, MAX_COPIED = 4 << 20
};
static const char NEW_ROOT[] = "/root";
static const char OPTIONS_9P[] = "trans=virtio,version=9p2000.L,msize=524288,cache=loose";

static int has_disk;
static word store = -1; /* a folder of the first root, where files are put that are bound into the other one */
static char copied[MAX_COPIED];

static word mount(const char *source, const char *target, const char *kind, unsigned long flags, const char *options) {
    return call(NR_mount, (word)source, (word)target, (word)kind, (word)flags, (word)options, 0);
}

static void mount_kernel_files(void) {
    CALL2(NR_mkdir, "/proc", 0755);
    CALL2(NR_mkdir, "/sys", 0755);
    CALL2(NR_mkdir, "/dev", 0755);
    mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID_, "mode=0755");
    mount("proc", "/proc", "proc", MS_NOSUID_ | MS_NODEV_ | MS_NOEXEC_, 0);
    mount("sysfs", "/sys", "sysfs", MS_NOSUID_ | MS_NODEV_ | MS_NOEXEC_, 0);
}

/* What else programs look for in /dev */
static void furnish_devices(void) {
    static const char *const LINKS[][2] = {
        {"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}};
    for (size i = 0; i < sizeof LINKS / sizeof *LINKS; i++) CALL2(NR_symlink, LINKS[i][0], LINKS[i][1]);
    CALL2(NR_mkdir, "/dev/pts", 0755);
    CALL2(NR_mkdir, "/dev/shm", 01777);
    CALL2(NR_mkdir, "/dev/mqueue", 01777);
    need(mount("devpts", "/dev/pts", "devpts", MS_NOSUID_ | MS_NOEXEC_, "gid=5,mode=620,ptmxmode=666"), "no terminals: /dev/pts", "");
    need(mount("shm", "/dev/shm", "tmpfs", MS_NOSUID_ | MS_NODEV_, "mode=1777"), "no shared memory: /dev/shm", "");
    mount("mqueue", "/dev/mqueue", "mqueue", MS_NOSUID_ | MS_NODEV_ | MS_NOEXEC_, 0);
}

/* Modules come from the host, with the kernel itself. To check signatures takes an emulated guest a third of the time that
   loading them does; versions that are not looked at are not signed either. A kernel that insists gets its way. */
static word load_module(word file) {
    static int flags = MODULE_INIT_IGNORE_MODVERSIONS_;
    word error = CALL3(NR_finit_module, file, "", flags);
    if (!error || error == -EEXIST_ || !flags) return error;
    flags = 0;
    return CALL3(NR_finit_module, file, "", flags);
}

/* In the order of their names. Which of them are needed shows when something of theirs is missing. */
static void load_modules(const char *from) {
    char last[256] = "";
    for (;;) {
        struct folder folder;
        struct text path;
        char next[256] = "";
        open_folder(&folder, from);
        for (const char *name; (name = next_name(&folder));)
            if (is_before(last, name) && (!*next || is_before(name, next)) && length_of(name) < sizeof next) memcpy(next, name, length_of(name) + 1);
        if (!*next) return;
        memcpy(last, next, sizeof last);
        word file = open_file(joined(&path, from, "/", next), O_RDONLY_);
        word error = file < 0 ? file : load_module(file);
        if (error && error != -EEXIST_) note("a module cannot be loaded: ", next, error);
        CALL1(NR_close, file);
        CALL1(NR_unlink, path.bytes); /* its memory is the guest's */
    }
}

/* A tree that the host shares. Its device may come later than the word to start. Owners over there are not the same as
   here, so neither set-uid bits nor device files of a share count. */
static word mount_share(const char *kind, const char *tag, const char *target, unsigned long flags) {
    int is_9p = is_same(kind, "9p");
    if (!is_9p && !is_same(kind, "virtiofs")) return -EINVAL_;
    for (word limit = now_ms() + MOUNT_MS;; sleep_ms(5)) {
        word error = mount(tag, target, kind, flags | MS_NOSUID_ | MS_NODEV_, is_9p ? OPTIONS_9P : 0);
        if ((error != -ENOENT_ && error != -EINVAL_) || now_ms() > limit) return error;
    }
}

/* Disks */

static word mount_as(const char *kind, const char *device, const char *options) {
    word error = mount(device, NEW_ROOT, kind, 0, options);
    if (error) return error;
    struct text path;
    if (is_there(joined(&path, NEW_ROOT, "/etc", ""))) return 0;
    CALL2(NR_umount2, NEW_ROOT, 0);
    return -ENOENT_;
}

/* With each kind of file system that the kernel knows; -ENOENT if it is one, and no root */
static word mount_disk(const char *device) {
    char kinds[4096];
    struct text path;
    word found = -ENXIO_, count = read_whole("/proc/filesystems", kinds, sizeof kinds - 1);
    joined(&path, "/dev/", device, "");
    kinds[count > 0 ? count : 0] = 0;
    for (char *line = kinds, *end; *line && found; line = end + 1) {
        for (end = line; *end && *end != '\n';) end++;
        int is_last = !*end;
        *end = 0;
        if (*line == '\t') {
            word error = mount_as(line + 1, path.bytes, 0);
            if (error == -ENOENT_ && is_same(line + 1, "btrfs")) {
                error = mount_as("btrfs", path.bytes, "subvol=@");
                if (error) error = mount_as("btrfs", path.bytes, "subvol=root");
            }
            if (!error || error == -ENOENT_) found = error;
        }
        if (is_last) break;
    }
    return found;
}

/* The first partition, by name, that can be a root; a disk without partitions is one itself. */
static word mount_first_disk(void) {
    int has_more = 1;
    for (word limit = now_ms() + MOUNT_MS;; sleep_ms(2)) {
        char last[64] = "";
        for (;;) {
            struct folder folder;
            char next[64] = "";
            open_folder(&folder, "/sys/class/block");
            for (const char *name; (name = next_name(&folder));)
                if (after(name, "vd") && is_before(last, name) && (!*next || is_before(name, next)) && length_of(name) < sizeof next)
                    memcpy(next, name, length_of(name) + 1);
            if (!*next) break;
            memcpy(last, next, sizeof last);
            if (!mount_disk(next)) return 0;
        }
        if (*last && has_more) {
            load_modules("/more-modules"); /* file systems that few roots are in */
            has_more = 0;
        } else if (*last) return -ENOENT_;
        if (now_ms() > limit) return -ENODEV_;
    }
}

/* The root */

static void mount_root(void) {
    char kind[16] = "";
    const char *root = value_of("root"), *at = root;
    if (!root) fail(EINVAL_, "the host does not say what the root is", "");
    for (size i = 0; *at && *at != ':' && i < sizeof kind - 1; i++) kind[i] = *at++;
    if (*at++ != ':') fail(EINVAL_, "this is no root: ", root);
    CALL2(NR_mkdir, NEW_ROOT, 0755);
    CALL2(NR_mkdir, "/.exeat", 0700);
    need(store = open_file("/.exeat", O_PATH_ | O_DIRECTORY_), "no folder for files of the guest's own", "");
    has_disk = is_same(kind, "disk");
    if (has_disk) need(mount_first_disk(), "no partition of the disk can be the root: none has a file system that this kernel knows and /etc", "");
    else need(mount_share(kind, at, NEW_ROOT, 0), "the root cannot be mounted: ", root);
}

static void move_into_root(const char *path) {
    struct text target;
    need(mount(path, joined(&target, NEW_ROOT, path, ""), 0, MS_MOVE_, 0), "the root has no place for ", path);
}

/* The first root cannot be left, only covered. */
static void enter_root(void) {
    move_into_root("/dev");
    move_into_root("/sys");
    move_into_root("/proc");
    need(CALL1(NR_chdir, NEW_ROOT), "the root cannot be entered", "");
    need(mount(".", "/", 0, MS_MOVE_, 0), "the root cannot be moved", "");
    need(CALL1(NR_chroot, "."), "the root cannot be entered", "");
    CALL1(NR_chdir, "/");
    if (has_disk) mount("run", "/run", "tmpfs", MS_NOSUID_ | MS_NODEV_, "mode=755");
}

/* KIND:TAG:PATH, with :ro or :rw behind it */
static void mount_others(void) {
    struct values values = values_of("mount");
    for (char *value; (value = next_value(&values));) {
        char *tag = value, *path, *mode;
        while (*tag && *tag != ':') tag++;
        for (path = *tag ? tag + 1 : tag; *path && *path != ':';) path++;
        if (!*tag || path[0] != ':' || path[1] != '/') fail(EINVAL_, "this cannot be mounted: ", value);
        *tag++ = *path++ = 0;
        for (mode = path + length_of(path); *mode != ':' && mode > path;) mode--;
        int is_read_only = is_same(mode, ":ro");
        if (is_read_only || is_same(mode, ":rw")) *mode = 0;
        make_folders(path, 1);
        need(mount_share(value, tag, path, is_read_only ? MS_RDONLY_ : 0), "this cannot be mounted: ", path);
    }
}

/* A folder for the command's user, if the root has none by that name */
static void make_home(void) {
    const char *home = value_of("home");
    word uid = number_of("uid", 10), gid = number_of("gid", 10);
    if (!home || is_there(home)) return;
    make_folders(home, 1);
    word folder = open_file(home, O_RDONLY_ | O_DIRECTORY_);
    CALL3(NR_fchown, folder, uid, gid);
    CALL2(NR_fchmod, folder, 0700);
    CALL1(NR_close, folder);
}

/* Files that are laid over those of the root */

static void bind_file(const char *bytes, size count, int mode, const char *path, int is_needed) {
    static word files;
    struct text name = {0, {0}}, link = {0, {0}};
    add_number(&name, files++);
    word file = CALL4(NR_openat, store, name.bytes, O_CREAT_ | O_RDWR_ | CLOEXEC_, 0600);
    need(file, "no memory for a file of the guest's own", "");
    need(write_whole(file, bytes, count), "no memory for ", path);
    CALL2(NR_fchmod, file, mode);
    add(&link, "/proc/self/fd/");
    add_number(&link, file);
    word error = mount(link.bytes, path, 0, MS_BIND_, 0);
    CALL1(NR_close, file);
    if (is_needed) need(error, "this file cannot be laid over the guest's: ", path);
    else if (error) note("not laid over: ", path, error);
}

/* An empty file, if there is none, and the folders on the way; also where a link leads to */
static void make_file(const char *path) {
    struct text target = {0, {0}};
    char link[MAX_PATH];
    word count = CALL3(NR_readlink, path, link, sizeof link - 1);
    make_folders(path, 0);
    if (count > 0) {
        link[count] = 0;
        if (*link != '/') {
            size folder = length_of(path);
            add(&target, path);
            while (folder && path[folder - 1] != '/') folder--;
            target.length = folder;
        }
        add(&target, link);
        make_folders(target.bytes, 0);
    }
    word file = CALL3(NR_open, path, O_CREAT_ | O_WRONLY_ | CLOEXEC_, 0644);
    if (file >= 0) CALL1(NR_close, file);
}

/* Is that the third field of a line? */
static int has_account(const char *text, const char *number) {
    while (*text) {
        int colons = 0;
        while (*text && *text != '\n' && colons < 2) colons += *text++ == ':';
        const char *rest = colons == 2 ? after(text, number) : 0;
        if (rest && *rest == ':') return 1;
        while (*text && *text++ != '\n') {}
    }
    return 0;
}

static void add_account(const char *path, const char *number, const char *rest) {
    struct text line;
    word count = read_whole(path, copied, sizeof copied - sizeof line);
    if (count < 0) count = 0;
    copied[count] = 0;
    if (has_account(copied, number)) return;
    joined(&line, count && copied[count - 1] != '\n' ? "\n" : "", "sandbox:x:", number);
    add(&line, rest);
    memcpy(copied + count, line.bytes, line.length);
    make_file(path);
    bind_file(copied, (size)count + line.length, 0644, path, 0);
}

/* Many programs want to know who they are: a line for the user and one for the group, if an image has none. */
static void name_user(void) {
    const char *uid = value_of("uid"), *gid = value_of("gid"), *home = value_of("home");
    struct text rest;
    if (!uid || !gid || !home) return;
    joined(&rest, ":", gid, "::");
    add(&rest, home);
    add(&rest, ":/bin/sh\n");
    add_account("/etc/passwd", uid, rest.bytes);
    add_account("/etc/group", gid, ":\n");
}

static void set_resolver(void) {
    struct text text;
    const char *resolver = value_of("resolver");
    if (!resolver) return;
    joined(&text, "nameserver ", resolver, "\n");
    if (has_disk) make_file("/etc/resolv.conf");
    bind_file(text.bytes, text.length, 0644, "/etc/resolv.conf", 0);
}

/* PATH:MODE:HEX */
static void place_files(void) {
    struct values values = values_of("file");
    for (char *value; (value = next_value(&values));) {
        char *hex = value + length_of(value), *mode;
        while (hex > value && *hex != ':') hex--;
        for (mode = hex; mode > value && *--mode != ':';) {}
        const char *at = mode + 1;
        word bits = *mode == ':' ? take_number(&at, 8) : -1, count = decode_hex(hex + 1);
        if (*value != '/' || bits < 0 || at != hex || count < 0) fail(EINVAL_, "this is no file for the guest: ", value);
        *mode = 0;
        make_file(value);
        bind_file(hex + 1, (size)count, (int)bits & 0777, value, 1);
    }
}

static int ends_with(const char *bytes, word count, const char *tail, word length) {
    if (count < length) return 0;
    for (word i = 0; i < length; i++)
        if (bytes[count - length + i] != tail[i]) return 0;
    return 1;
}

/* The certificate of the run's own authority, behind those that the image trusts: exeat/trust/places.py has the same */
static void trust_authority(void) {
    static const char *const BUNDLES[] = {
        "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem",
        "/etc/ca-certificates/extracted/tls-ca-bundle.pem", "/etc/ssl/certs/ca-bundle.crt", "/etc/pki/tls/cacert.pem",
        "/etc/pki/tls/cert.pem", "/etc/ssl/cert.pem", "/usr/local/etc/ssl/cert.pem", "/usr/local/ssl/cert.pem"};
    char *authority = value_of("ca");
    word length = authority ? decode_hex(authority) : 0;
    if (length < 0) fail(EINVAL_, "the certificate of the authority is not in hex", "");
    for (size i = 0; length && i < sizeof BUNDLES / sizeof *BUNDLES; i++) {
        word count = read_whole(BUNDLES[i], copied, sizeof copied - 1 - (size)length);
        if (count < 0) continue; /* the image has no such bundle, or this is a folder */
        if (ends_with(copied, count, authority, length)) continue; /* by another of these names, which is a link */
        if (count && copied[count - 1] != '\n') copied[count++] = '\n';
        memcpy(copied + count, authority, (size)length);
        bind_file(copied, (size)(count + length), 0644, BUNDLES[i], 1);
    }
}
