/* Reading one HTTP/1 reply: a status of 200 and a body of a known length, counted or in chunks. No I/O in here. */
#ifndef REPLY_H
#define REPLY_H
#include <stddef.h>

enum { REPLY_HEAD_MAX = 8192 };
enum reply_part { IN_HEAD, COUNTED, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILERS, COMPLETE };

struct reply {
    enum reply_part part;
    size_t head_len;
    long long body;     /* bytes of the body so far, without any framing */
    long long left;     /* of the chunk */
    int line_len;       /* of a chunk's size line, or of a trailer line */
    int last;           /* the peer said it would close after this reply */
    const char *why;    /* what was wrong with it */
    char head[REPLY_HEAD_MAX + 1];
};

/* Make ready for the next reply. */
void reply_begin(struct reply *r);

/* Add bytes to the head. How many of them belong to it once it is complete; 0: more is needed; -1: too long. */
long reply_take_head(struct reply *r, const char *data, size_t len);

/* Take bytes of a reply whose body must have `want` bytes.
 * 1: it is complete; 0: more is needed; -1: `why` says what is wrong with it. */
int reply_take(struct reply *r, const char *data, size_t len, long long want);

#endif
