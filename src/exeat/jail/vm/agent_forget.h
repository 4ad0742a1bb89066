/* Files that the guest remembers. virtiofsd keeps a descriptor for each, and a user may be allowed few of them: when they
   are used up, no file can be opened any more. A kernel with free memory forgets none by itself, so it is made to. */

enum { NR_pread64 = 17, NR_pwrite64 = 18, SOONEST_MS = 50, LATEST_MS = 2000, MOST_TIMES = 4 };

/* Opened before the command runs: whoever is root here may put other files in their places later. */
static word of_count = -1, of_forgetting = -1;
static word most_known, known_at_first, known_at_last, next_look_ms;

static word count_known(void) {
    char text[64] = "";
    const char *at = text;
    CALL4(NR_pread64, of_count, text, sizeof text - 1, 0);
    return take_number(&at, 10);
}

static void watch_known_files(void) {
    most_known = number_of("known-files", 10);
    if (most_known <= 0) return;
    of_count = open_file("/proc/sys/fs/inode-nr", O_RDONLY_);
    of_forgetting = open_file("/proc/sys/vm/drop_caches", O_WRONLY_);
    CALL4(NR_pwrite64, of_forgetting, "4", 1, 0); /* without a word in the kernel's log */
    known_at_first = count_known();
    if (of_count < 0 || of_forgetting < 0 || known_at_first < 0) most_known = 0;
}

static word forgetting_wait_ms(void) {
    word wait_ms = most_known / 100;
    return most_known <= 0 ? -1 : wait_ms < SOONEST_MS ? SOONEST_MS : wait_ms > LATEST_MS ? LATEST_MS : wait_ms;
}

/* What is in use stays. If that is nearly all, it is not tried again until there is more to gain. */
static void forget_files(void) {
    word now = most_known > 0 ? now_ms() : 0;
    if (now < next_look_ms || most_known <= 0) return;
    next_look_ms = now + forgetting_wait_ms();
    word known = count_known();
    if (known - known_at_first < most_known || known < known_at_last + most_known / 8) return;
    /* The first time takes from most of them the mark that they were used lately, and little else. */
    for (int times = 0; times < MOST_TIMES && (!times || known - known_at_first >= most_known / 2); times++) {
        CALL4(NR_pwrite64, of_forgetting, "3", 1, 0); /* contents, and names */
        known = count_known();
    }
    known_at_last = known;
}
