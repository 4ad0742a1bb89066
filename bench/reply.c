#define _GNU_SOURCE
#include "reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong(struct reply *r, const char *why) {
    r->why = why;
    return -1;
}

void reply_begin(struct reply *r) {
    r->part = IN_HEAD;
    r->head_len = 0;
    r->body = r->left = 0;
    r->line_len = r->last = 0;
    r->why = NULL;
}

long reply_take_head(struct reply *r, const char *data, size_t len) {
    size_t before = r->head_len, taken = len;
    if (taken > REPLY_HEAD_MAX - before) taken = REPLY_HEAD_MAX - before;
    memcpy(r->head + before, data, taken);
    r->head[before + taken] = 0;
    char *end = strstr(before > 3 ? r->head + before - 3 : r->head, "\r\n\r\n");
    if (!end) {
        r->head_len = before + taken;
        return taken < len ? -1 : 0;
    }
    end[4] = 0;
    r->head_len = (size_t)(end + 4 - r->head);
    return (long)(r->head_len - before);
}

static int judge_head(struct reply *r, long long want) {
    static char why[120];
    if (strncmp(r->head, "HTTP/1.", 7) || strncmp(r->head + 8, " 200", 4)) {
        r->head[strcspn(r->head, "\r\n")] = 0;
        snprintf(why, sizeof why, "reply: %.60s", r->head);
        return wrong(r, why);
    }
    char *length = strcasestr(r->head, "\r\ncontent-length:");
    int chunked = strcasestr(r->head, "\r\ntransfer-encoding: chunked\r\n") != NULL;
    if (chunked ? length != NULL : !length || atoll(length + 17) != want) return wrong(r, "reply of another length");
    r->last = strcasestr(r->head, "\r\nconnection: close") != NULL || r->head[7] == '0';
    r->part = chunked ? CHUNK_SIZE : want ? COUNTED : COMPLETE;
    return 0;
}

/* Where in a chunk's framing we are now that a line has ended. */
static void end_line(struct reply *r) {
    if (r->part == CHUNK_SIZE) r->part = r->left ? CHUNK_DATA : TRAILERS;
    else if (r->part == CHUNK_END) r->part = CHUNK_SIZE;
    else if (r->line_len == 0) r->part = COMPLETE;
    if (r->part != CHUNK_DATA) r->left = 0;
    r->line_len = 0;
}

static int take_framing(struct reply *r, char byte) {
    if (byte == '\n') { end_line(r); return 0; }
    if (byte == '\r') return 0;
    if (r->part == CHUNK_END || ++r->line_len > 200) return wrong(r, "a chunk that does not end where it should");
    if (r->part == CHUNK_SIZE) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, byte | 0x20);
        if (!digit || r->line_len > 12) return wrong(r, "a chunk size that is no number");
        r->left = r->left * 16 + (digit - digits);
    }
    return 0;
}

int reply_take(struct reply *r, const char *data, size_t len, long long want) {
    if (r->part == IN_HEAD) {
        long n = reply_take_head(r, data, len);
        if (n < 0) return wrong(r, "the head is too long");
        if (n == 0) return 0;
        if (judge_head(r, want) < 0) return -1;
        data += n;
        len -= (size_t)n;
    }
    while (len > 0) {
        if (r->part == COMPLETE) return wrong(r, "more bytes than the reply announced");
        if (r->part != COUNTED && r->part != CHUNK_DATA) {
            if (take_framing(r, *data) < 0) return -1;
            data++;
            len--;
            continue;
        }
        long long room = r->part == COUNTED ? want - r->body : r->left;
        size_t taken = (long long)len < room ? len : (size_t)room;
        r->body += (long long)taken;
        data += taken;
        len -= taken;
        if (r->part == CHUNK_DATA && (r->left -= (long long)taken) == 0) r->part = CHUNK_END;
        else if (r->part == COUNTED && r->body == want) r->part = COMPLETE;
    }
    if (r->part != COMPLETE) return 0;
    return r->body == want ? 1 : wrong(r, "reply of another length");
}
