/* The load generator: one thread, epoll, OpenSSL, through an HTTP forward proxy.
 *
 * Its own program, because the usual ones open a new tunnel for each request or cost more CPU than the
 * proxies they load. Everything is bounded, in count or in time, and goes to loopback only, or to an address
 * that stands for a name inside a jail.
 *
 *   load MODE PEER ORIGIN PATH LENGTH CONNECTIONS WARM_S SECONDS REQUESTS
 *
 * PEER is what it connects to, the proxy for most modes; ORIGIN is what it asks for; both are HOST:PORT.
 * MODE  plain         absolute-form requests, connections kept
 *       plain-new     the same, a new connection for each request
 *       tunnel        CONNECT and TLS once, then many requests inside
 *       tunnel-new    CONNECT, TLS handshake, one request, close (the client resumes its TLS session)
 *       idle          CONNECT and TLS handshake, then nothing
 *       direct        origin-form requests, no proxy that the generator knows of, connections kept
 *       direct-new    the same, a new connection for each request
 *       direct-tls    the same over TLS, connections kept
 * A phase ends after REQUESTS, or after SECONDS when REQUESTS is 0.
 *
 * It speaks with its parent in lines: "warm" after the warm-up, then it waits for a line, so that the parent
 * can read the proxy's CPU clock; one line of JSON after the measured phase, then it waits again, so that the
 * clock is read before any connection is closed. A reply other than 200 with LENGTH bytes is an error. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum state { CLOSED, RESTING, DIALLING, ASKING_TUNNEL, AWAITING_TUNNEL, HANDSHAKE, SENDING, HEAD, BODY };
enum { AGAIN = -1, BROKEN = -2, HEAD_MAX = 8192, STALL_S = 20 };

struct conn {
    enum state state;
    int fd, served, retried;
    SSL *ssl;
    uint64_t began_ns;
    size_t sent, head_len;
    long long body_left;
    int last; /* the peer said it would close after this reply */
    char head[HEAD_MAX + 1];
};

static int fresh, tunnelled, over_tls, idle, epoll_fd, in_flight;
static struct sockaddr_in peer = {.sin_family = AF_INET};
static char connect_text[512], request_text[1024], scratch[1 << 18], first_error[160];
static const char *server_name; /* for SNI; none where the origin is an address */
static size_t connect_len, request_len;
static long long want_length, quota, issued, done, errors, reconnects, bytes;
static uint64_t deadline_ns;
static uint32_t *latency_us;
static size_t latency_room;
static SSL_CTX *tls;
static SSL_SESSION *session;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static int keep_session(SSL *ssl, SSL_SESSION *fresh_session) {
    (void)ssl;
    if (session) SSL_SESSION_free(session);
    session = fresh_session;
    return 1;
}

static void hang_up(struct conn *c) {
    if (c->ssl) {
        if (SSL_is_init_finished(c->ssl)) SSL_shutdown(c->ssl); /* close_notify, as browsers and curl do */
        SSL_free(c->ssl);
        c->ssl = NULL;
    }
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->state = CLOSED;
}

static void dial(struct conn *c) {
    int one = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if ((c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&peer, sizeof peer) < 0 && errno != EINPROGRESS) die("connect");
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl");
    c->state = DIALLING;
    c->served = 0;
    c->sent = c->head_len = 0;
}

/* Give the connection its next request, or let it rest when the phase has no more to hand out. */
static void issue(struct conn *c) {
    if (quota ? issued >= quota : now_ns() >= deadline_ns) return;
    issued++;
    in_flight++;
    c->began_ns = now_ns();
    c->retried = 0;
    c->sent = c->head_len = 0;
    if (c->fd < 0) dial(c);
    else c->state = SENDING;
}

static void fail(struct conn *c, const char *why) {
    if (!errors++) snprintf(first_error, sizeof first_error, "%s", why);
    hang_up(c);
    in_flight--;
    if (errors < 100) issue(c); /* a broken proxy is noticed, not hammered */
}

/* The peer closed. A kept connection may be closed between two requests, and then one retry is right. */
static void lost(struct conn *c, const char *why) {
    if (c->state == RESTING) { hang_up(c); return; }
    if ((c->state == SENDING || c->state == HEAD) && c->head_len == 0 && c->served && !c->retried) {
        hang_up(c);
        reconnects++;
        dial(c);
        c->retried = 1;
        return;
    }
    fail(c, why);
}

static void complete(struct conn *c) {
    if (done < (long long)latency_room) latency_us[done] = (uint32_t)((now_ns() - c->began_ns) / 1000);
    done++;
    in_flight--;
    c->served++;
    c->state = RESTING;
    if (fresh || (c->last && !idle)) {
        if (!fresh) reconnects++;
        hang_up(c);
    }
    issue(c);
}

static long got(struct conn *c, long n) {
    if (n > 0) return n;
    if (c->ssl) {
        int why = SSL_get_error(c->ssl, (int)n);
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? AGAIN : BROKEN;
    }
    return n < 0 && errno == EAGAIN ? AGAIN : BROKEN;
}

static long take(struct conn *c, char *into, size_t room) {
    return got(c, c->ssl ? SSL_read(c->ssl, into, (int)room) : read(c->fd, into, room));
}

static long give(struct conn *c, const char *text, size_t len) {
    text += c->sent;
    len -= c->sent;
    long n = got(c, c->ssl ? SSL_write(c->ssl, text, (int)len) : write(c->fd, text, len));
    if (n > 0) c->sent += (size_t)n;
    return n;
}

/* Read up to the end of a head; returns its length, or AGAIN or BROKEN. */
static long take_head(struct conn *c) {
    if (c->head_len == HEAD_MAX) return BROKEN;
    long n = take(c, c->head + c->head_len, HEAD_MAX - c->head_len);
    if (n < 0) return n;
    c->head_len += (size_t)n;
    c->head[c->head_len] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    return end ? end + 4 - c->head : 0;
}

static const char *read_reply_head(struct conn *c, size_t head_end) {
    static char why[120];
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (strncmp(c->head, "HTTP/1.", 7) || strncmp(c->head + 8, " 200", 4)) {
        snprintf(why, sizeof why, "reply: %.60s", strtok(c->head, "\r\n"));
        return why;
    }
    if (!length || length > c->head + head_end || atoll(length + 17) != want_length) return "reply of another length";
    char *close_said = strcasestr(c->head, "\r\nconnection: close");
    c->last = (close_said && close_said < c->head + head_end) || c->head[7] == '0';
    c->body_left = want_length - (long long)(c->head_len - head_end);
    bytes += (long long)c->head_len;
    return NULL;
}

static void start_tls(struct conn *c) {
    c->ssl = SSL_new(tls);
    SSL_set_fd(c->ssl, c->fd);
    if (server_name) SSL_set_tlsext_host_name(c->ssl, server_name);
    if (session) SSL_set_session(c->ssl, session);
    c->state = HANDSHAKE;
}

static void drive(struct conn *c) {
    for (;;) {
        long n = 1;
        const char *why;
        switch (c->state) {
        case CLOSED:
            return;
        case RESTING: /* TLS tickets, or the peer closing */
            if ((n = take(c, scratch, sizeof scratch)) > 0) n = BROKEN;
            break;
        case DIALLING: {
            int err = 0;
            socklen_t len = sizeof err;
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len);
            if (err) { fail(c, strerror(err)); return; }
            if (getpeername(c->fd, (struct sockaddr *)scratch, &(socklen_t){sizeof peer}) < 0) return;
            if (over_tls && !tunnelled) start_tls(c);
            else c->state = tunnelled ? ASKING_TUNNEL : SENDING;
            break;
        }
        case ASKING_TUNNEL:
            if ((n = give(c, connect_text, connect_len)) > 0 && c->sent == connect_len) c->state = AWAITING_TUNNEL;
            break;
        case AWAITING_TUNNEL:
            if ((n = take_head(c)) <= 0) { if (n == 0) n = 1; break; }
            if (strncmp(c->head + 8, " 200", 4)) { fail(c, strtok(c->head, "\r\n")); return; }
            start_tls(c);
            break;
        case HANDSHAKE:
            if ((n = got(c, SSL_connect(c->ssl))) <= 0) break;
            c->sent = c->head_len = 0;
            c->state = SENDING;
            if (idle) { complete(c); return; }
            break;
        case SENDING:
            if ((n = give(c, request_text, request_len)) > 0 && c->sent == request_len) c->state = HEAD;
            break;
        case HEAD:
            if ((n = take_head(c)) <= 0) { if (n == 0) n = 1; break; }
            if ((why = read_reply_head(c, (size_t)n))) { fail(c, why); return; }
            c->state = BODY;
            break;
        case BODY:
            if (c->body_left > 0) {
                if ((n = take(c, scratch, sizeof scratch)) <= 0) break;
                bytes += n;
                c->body_left -= n;
            }
            if (c->body_left < 0) { fail(c, "more bytes than the reply announced"); return; }
            if (c->body_left == 0) complete(c);
            break;
        }
        if (n == BROKEN) lost(c, "connection closed early");
        if (n < 0) return;
    }
}

/* Run until every request that was handed out has been answered; returns seconds. */
static double phase(struct conn *all, int count, double seconds, long long requests) {
    struct epoll_event events[256];
    uint64_t begin = now_ns(), progress_ns = begin;
    long long seen = 0;
    deadline_ns = begin + (uint64_t)(seconds * 1e9);
    quota = requests;
    issued = done = bytes = reconnects = 0;
    for (int i = 0; i < count; i++) {
        issue(&all[i]);
        if (all[i].state == SENDING) drive(&all[i]);
    }
    while (in_flight > 0) {
        int n = epoll_wait(epoll_fd, events, 256, 1000);
        for (int i = 0; i < n; i++) drive(events[i].data.ptr);
        if (done + bytes != seen) { seen = done + bytes; progress_ns = now_ns(); }
        else if (now_ns() - progress_ns > STALL_S * 1000000000ull) {
            if (!errors) snprintf(first_error, sizeof first_error, "no progress for %d s", STALL_S);
            errors += in_flight;
            break;
        }
    }
    return (double)(now_ns() - begin) / 1e9;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void await_line(void) {
    char byte;
    fflush(stdout);
    while (read(0, &byte, 1) == 1 && byte != '\n') {}
}

/* Cut HOST:PORT in two; returns the port. */
static char *cut(char *place) {
    char *colon = strrchr(place, ':');
    if (!colon) { fprintf(stderr, "%s: not HOST:PORT\n", place); exit(2); }
    *colon = 0;
    return colon + 1;
}

static void find_peer(char *place) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    char *port = cut(place);
    int why = getaddrinfo(place, port, &hints, &found);
    if (why) { fprintf(stderr, "%s: %s\n", place, gai_strerror(why)); exit(2); }
    memcpy(&peer, found->ai_addr, sizeof peer);
    freeaddrinfo(found);
    uint32_t address = ntohl(peer.sin_addr.s_addr);
    if (address >> 24 != 127 && address >> 17 != 0xC612 >> 1) { /* 198.18.0.0/15 */
        fprintf(stderr, "%s: neither loopback nor a jail's address for a name\n", place);
        exit(2);
    }
}

int main(int argc, char **argv) {
    if (argc != 10) { fprintf(stderr, "usage: see the head of load.c\n"); return 2; }
    const char *mode = argv[1];
    int direct = !strncmp(mode, "direct", 6), count = atoi(argv[6]);
    double warm_s = atof(argv[7]), seconds = atof(argv[8]);
    long long requests = atoll(argv[9]);
    fresh = strstr(mode, "-new") != NULL;
    idle = !strcmp(mode, "idle");
    tunnelled = idle || !strncmp(mode, "tunnel", 6);
    over_tls = tunnelled || !strcmp(mode, "direct-tls");
    want_length = atoll(argv[5]);
    signal(SIGPIPE, SIG_IGN);
    if (strlen(argv[3]) > 100 || strlen(argv[4]) > 100) { fprintf(stderr, "ORIGIN or PATH is too long\n"); return 2; }
    connect_len = (size_t)snprintf(connect_text, sizeof connect_text,
        "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", argv[3], argv[3]);
    request_len = (size_t)snprintf(request_text, sizeof request_text,
        "GET %s%s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n",
        tunnelled || direct ? "" : "http://", tunnelled || direct ? "" : argv[3], argv[4], argv[3]);
    find_peer(argv[2]);
    cut(argv[3]);
    if (inet_pton(AF_INET, argv[3], scratch) != 1) server_name = argv[3];
    latency_room = requests ? (size_t)requests : 4000000;
    struct conn *all = calloc((size_t)count, sizeof *all);
    latency_us = calloc(latency_room, sizeof *latency_us);
    if (!all || !latency_us || (epoll_fd = epoll_create1(0)) < 0) die("start");
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_verify(tls, SSL_VERIFY_NONE, NULL); /* the origin's certificate is made for this run */
    SSL_CTX_set_read_ahead(tls, 1);
    SSL_CTX_set_default_read_buffer_len(tls, 1 << 17);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (fresh) {
        SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(tls, keep_session);
    }
    for (int i = 0; i < count; i++) all[i].fd = -1;
    if (warm_s > 0) phase(all, count, warm_s, 0);
    puts("warm");
    await_line();
    double took = phase(all, count, seconds, requests);
    size_t kept = done < (long long)latency_room ? (size_t)done : latency_room;
    qsort(latency_us, kept, sizeof *latency_us, ascending);
    printf("{\"requests\": %lld, \"seconds\": %.6f, \"p50_us\": %u, \"p99_us\": %u, \"bytes\": %lld, "
           "\"reconnects\": %lld, \"errors\": %lld, \"first_error\": \"", done, took,
           kept ? latency_us[kept / 2] : 0, kept ? latency_us[kept * 99 / 100] : 0, bytes, reconnects, errors);
    for (char *p = first_error; *p; p++) putchar(*p == '"' || *p == '\\' || *p < ' ' ? '\'' : *p);
    puts("\"}");
    await_line();
    return errors ? 1 : 0;
}
