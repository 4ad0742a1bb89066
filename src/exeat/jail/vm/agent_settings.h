/* What the host says: entries `key=value`, each with a NUL behind it. What never changes and is no secret comes by the
   machine's firmware, as OEM strings (SMBIOS type 11) that begin with "exeat:"; the rest with the word to start. */

enum { MAX_START = 1 << 20, MAX_FIRMWARE = 1 << 18, OEM_STRINGS = 11, END_OF_TABLE = 127 };

struct settings { const char *at, *end; };
struct values { struct settings left; const char *key; };

static struct settings from_firmware, from_start;
static char firmware[MAX_FIRMWARE], firmware_texts[MAX_FIRMWARE];

/* The next value of that key, or 0 */
static char *next_value(struct values *values) {
    while (values->left.at < values->left.end) {
        const char *entry = values->left.at, *value = after(entry, values->key);
        values->left.at = entry + length_of(entry) + 1;
        if (value && *value == '=') return (char *)value + 1;
    }
    return 0;
}

/* A key that comes with the word to start counts instead of all of that name from the firmware. */
static struct values values_of(const char *key) {
    struct values started = {from_start, key}, probe = started, set = {from_firmware, key};
    return next_value(&probe) ? started : set;
}

static char *value_of(const char *key) {
    struct values values = values_of(key);
    return next_value(&values);
}

/* -1: not said, or no number */
static word number_of(const char *key, int base) {
    const char *value = value_of(key);
    word number = value ? take_number(&value, base) : -1;
    return value && *value ? -1 : number;
}

/* The strings of one structure: each has a NUL, one more is behind the last. What follows them. */
static const char *take_strings(const char *at, const char *end, int is_ours, char **to) {
    if (at + 1 < end && !at[0] && !at[1]) return at + 2;
    while (at < end && *at) {
        const char *text = at;
        while (at < end && *at) at++;
        if (at == end) return end;
        at++;
        if (!is_ours || !(text = after(text, "exeat:"))) continue;
        while ((*(*to)++ = *text++)) {}
    }
    return at + 1;
}

/* The table of all structures: kind, length of the fixed part, handle (2 bytes), the rest of the fixed part, strings. */
static void read_firmware(void) {
    word count = read_whole("/sys/firmware/dmi/tables/DMI", firmware, sizeof firmware);
    const char *at = firmware, *end = firmware + (count > 0 ? count : 0);
    char *to = firmware_texts;
    while (end - at >= 4) {
        unsigned char kind = (unsigned char)at[0], length = (unsigned char)at[1];
        if (length < 4 || end - at < length || kind == END_OF_TABLE) break;
        at = take_strings(at + length, end, kind == OEM_STRINGS, &to);
    }
    from_firmware = (struct settings){firmware_texts, to};
}
