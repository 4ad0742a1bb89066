/* The load generator: one thread, epoll, OpenSSL, through an HTTP forward proxy.
 *
 * Its own program, because the usual ones open a new tunnel for each request or cost more CPU than the
 * proxies they load. Everything is bounded, in count or in time, and goes to loopback only, or to an address
 * that stands for a name inside a jail.
 *
 *   load MODE PEER ORIGIN PATH LENGTH CONNECTIONS WARM_S SECONDS REQUESTS [TOKEN [BODY]]
 *
 * PEER is what it connects to, the proxy for most modes; ORIGIN is what it asks for; both are HOST:PORT.
 * MODE  plain         absolute-form requests, connections kept
 *       plain-new     the same, a new connection for each request
 *       tunnel        CONNECT and TLS once, then many requests inside
 *       tunnel-new    CONNECT, TLS handshake, one request, close (the client resumes its TLS session)
 *       tunnel-full   the same with a full TLS handshake each time
 *       idle          CONNECT and TLS handshake, then nothing
 *       direct        origin-form requests, no proxy that the generator knows of, connections kept
 *       direct-new    the same, a new connection for each request
 *       direct-tls    the same over TLS, connections kept
 *       MODE-unique   the same as MODE, each request with a header line that no other request has
 * A phase ends after REQUESTS, or after SECONDS when REQUESTS is 0.
 * LOAD_PER_S in the environment: no more than so many requests a second, evenly.
 * LOAD_CLIENTS in the environment: each connection is one of so many clients, with an address and a login of its own
 * (bench/scale.py has the same).
 * TOKEN is sent as `Authorization: Bearer TOKEN`; BODY is a file that is sent with each request, as JSON.
 *
 * It speaks with its parent in lines: "warm" after the warm-up, then it waits for a line, so that the parent
 * can read the proxy's CPU clock; one line of JSON after the measured phase, then it waits again, so that the
 * clock is read before any connection is closed. A reply other than 200 with LENGTH bytes is an error.
 * Certificates are not verified: it is the proxies that are under test, and whom they trust is theirs to check. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "reply.h"

enum state { CLOSED, RESTING, DIALLING, ASKING_TUNNEL, AWAITING_TUNNEL, HANDSHAKE, SENDING, READING };
enum { AGAIN = -1, BROKEN = -2, STALL_S = 20 };

struct conn {
    enum state state;
    int fd, served, retried, client;
    SSL *ssl;
    uint64_t began_ns;
    size_t sent;
    char *text, *stamp; /* its request, and what of it is different each time */
    size_t text_len;
    struct reply reply;
};

static int fresh, tunnelled, over_tls, idle, epoll_fd, in_flight, unique, clients;
static struct sockaddr_in peer = {.sin_family = AF_INET};
static char connect_text[512], *request_text, scratch[1 << 18], first_error[160];
static const char *server_name; /* for SNI; none where the origin is an address */
static size_t connect_len, request_len;
static long long want_length, quota, issued, done, errors, reconnects, bytes, moved;
static unsigned long long stamps;
static uint64_t deadline_ns, pace_ns, next_ns;
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
    if (clients) {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F400001u + (uint32_t)c->client)};
        if (bind(c->fd, (struct sockaddr *)&own, sizeof own) < 0) die("bind");
    }
    if (connect(c->fd, (struct sockaddr *)&peer, sizeof peer) < 0 && errno != EINPROGRESS) die("connect");
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0) die("epoll_ctl");
    c->state = DIALLING;
    c->served = 0;
    c->sent = 0;
    reply_begin(&c->reply);
}

/* Give the connection its next request, or let it rest when the phase has no more to hand out. */
static void issue(struct conn *c) {
    if (quota ? issued >= quota : now_ns() >= deadline_ns) return;
    if (pace_ns) { /* not yet: it is found again when it is time */
        if (now_ns() < next_ns) return;
        next_ns += pace_ns;
    }
    issued++;
    in_flight++;
    c->began_ns = now_ns();
    c->retried = 0;
    c->sent = 0;
    if (c->stamp) {
        char digits[17];
        snprintf(digits, sizeof digits, "%016llx", ++stamps);
        memcpy(c->stamp, digits, 16);
    }
    reply_begin(&c->reply);
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
    if ((c->state == SENDING || c->state == READING) && c->reply.head_len == 0 && c->served && !c->retried) {
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
    bytes += c->reply.body;
    in_flight--;
    c->served++;
    c->state = RESTING;
    if (fresh || (c->reply.last && !idle)) {
        if (!fresh) reconnects++;
        hang_up(c);
    }
    issue(c);
}

static long got(struct conn *c, long n) {
    if (n > 0) {
        moved += n;
        return n;
    }
    if (c->ssl) {
        int why = SSL_get_error(c->ssl, (int)n);
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? AGAIN : BROKEN;
    }
    return n < 0 && errno == EAGAIN ? AGAIN : BROKEN;
}

static long take(struct conn *c) {
    return got(c, c->ssl ? SSL_read(c->ssl, scratch, sizeof scratch) : read(c->fd, scratch, sizeof scratch));
}

static long give(struct conn *c, const char *text, size_t len) {
    text += c->sent;
    len -= c->sent;
    long n = got(c, c->ssl ? SSL_write(c->ssl, text, (int)len) : write(c->fd, text, len));
    if (n > 0) c->sent += (size_t)n;
    return n;
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
        int whole;
        switch (c->state) {
        case CLOSED:
            return;
        case RESTING: /* TLS tickets, or the peer closing */
            if ((n = take(c)) > 0) n = BROKEN;
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
            if ((n = take(c)) <= 0) break;
            if ((n = reply_take_head(&c->reply, scratch, (size_t)n)) == 0) { n = 1; break; }
            if (n < 0 || strncmp(c->reply.head + 8, " 200", 4)) { fail(c, strtok(c->reply.head, "\r\n")); return; }
            start_tls(c);
            break;
        case HANDSHAKE:
            if ((n = got(c, SSL_connect(c->ssl))) <= 0) break;
            c->sent = 0;
            reply_begin(&c->reply);
            c->state = SENDING;
            if (idle) { complete(c); return; }
            break;
        case SENDING:
            if ((n = give(c, c->text, c->text_len)) > 0 && c->sent == c->text_len) c->state = READING;
            break;
        case READING:
            if ((n = take(c)) <= 0) break;
            whole = reply_take(&c->reply, scratch, (size_t)n, want_length);
            if (whole < 0) { fail(c, c->reply.why); return; }
            if (whole) complete(c);
            break;
        }
        if (n == BROKEN) lost(c, "connection closed early");
        if (n < 0) return;
    }
}

static void issue_to_idle(struct conn *all, int count) {
    for (int i = 0; i < count; i++) {
        if (all[i].state != CLOSED && all[i].state != RESTING) continue;
        issue(&all[i]);
        if (all[i].state == SENDING) drive(&all[i]);
    }
}

/* Run until every request that was handed out has been answered; returns seconds. */
static double phase(struct conn *all, int count, double seconds, long long requests) {
    struct epoll_event events[256];
    uint64_t begin = now_ns(), progress_ns = begin;
    long long seen = 0;
    deadline_ns = begin + (uint64_t)(seconds * 1e9);
    quota = requests;
    issued = done = bytes = moved = reconnects = 0;
    next_ns = begin;
    issue_to_idle(all, count);
    while (in_flight > 0 || (pace_ns && !errors && now_ns() < deadline_ns)) {
        uint64_t now = now_ns(), wait = !pace_ns ? 1000000000u : next_ns > now ? next_ns - now : 0;
        struct timespec timeout = {.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)};
        int n = epoll_pwait2(epoll_fd, events, 256, &timeout, NULL);
        for (int i = 0; i < n; i++) drive(events[i].data.ptr);
        if (pace_ns) issue_to_idle(all, count);
        if (done + moved != seen) { seen = done + moved; progress_ns = now_ns(); }
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

/* The request, body and all, as one piece of memory. */
static void compose_request(const char *before, const char *path, const char *host, const char *token,
                            const char *body) {
    char framing[120] = "";
    long body_len = 0;
    FILE *file = NULL;
    if (body) {
        if (!(file = fopen(body, "rb")) || fseek(file, 0, SEEK_END) < 0 || (body_len = ftell(file)) < 0) die(body);
        rewind(file);
        snprintf(framing, sizeof framing, "Content-Type: application/json\r\nContent-Length: %ld\r\n", body_len);
    }
    if (!(request_text = malloc(2048 + (size_t)body_len))) die("malloc");
    request_len = (size_t)snprintf(request_text, 2048,
        "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: load\r\nAccept: */*\r\n%s%s%s%s\r\n",
        body ? "POST" : "GET", before, path, host, token ? "Authorization: Bearer " : "", token ? token : "",
        token ? "\r\n" : "", framing);
    if (!body) return;
    if (fread(request_text + request_len, 1, (size_t)body_len, file) != (size_t)body_len) die(body);
    request_len += (size_t)body_len;
    fclose(file);
}

/* The request of one connection, with the lines that only it sends. */
static void own_request(struct conn *c, int number, int count) {
    char lines[256] = "", login[64], coded[96];
    c->text = request_text;
    c->text_len = request_len;
    if (!unique && !clients) return;
    size_t length = 0;
    if (clients) {
        c->client = (int)((long long)number * clients / count);
        int n = snprintf(login, sizeof login, "c%05d:credential-of-client-%05d", c->client, c->client);
        EVP_EncodeBlock((unsigned char *)coded, (unsigned char *)login, n);
        length += (size_t)snprintf(lines, sizeof lines, "Proxy-Authorization: Basic %s\r\n", coded);
    }
    size_t at = (size_t)(strstr(request_text, "\r\n") + 2 - request_text);
    size_t stamp = at + length + strlen("X-Request-Id: ");
    if (unique)
        length += (size_t)snprintf(lines + length, sizeof lines - length, "X-Request-Id: %016d\r\n", 0);
    if (!(c->text = malloc(request_len + length))) die("malloc");
    memcpy(c->text, request_text, at);
    memcpy(c->text + at, lines, length);
    memcpy(c->text + at + length, request_text + at, request_len - at);
    c->text_len = request_len + length;
    if (unique) c->stamp = c->text + stamp;
}

int main(int argc, char **argv) {
    if (argc < 10 || argc > 12) { fprintf(stderr, "usage: see the head of load.c\n"); return 2; }
    const char *mode = argv[1];
    int direct = !strncmp(mode, "direct", 6), count = atoi(argv[6]);
    double warm_s = atof(argv[7]), seconds = atof(argv[8]);
    long long requests = atoll(argv[9]);
    int resumes = strstr(mode, "-new") != NULL;
    fresh = resumes || strstr(mode, "-full") != NULL;
    idle = !strcmp(mode, "idle");
    tunnelled = idle || !strncmp(mode, "tunnel", 6);
    over_tls = tunnelled || !strncmp(mode, "direct-tls", 10);
    want_length = atoll(argv[5]);
    const char *per_s = getenv("LOAD_PER_S");
    const char *many = getenv("LOAD_CLIENTS");
    clients = many ? atoi(many) : 0;
    unique = strstr(mode, "-unique") != NULL;
    if (per_s && atof(per_s) > 0) pace_ns = (uint64_t)(1e9 / atof(per_s));
    signal(SIGPIPE, SIG_IGN);
    for (int i = 3; i < argc; i++)
        if (i != 11 && strlen(argv[i]) > 100) { fprintf(stderr, "an argument is too long\n"); return 2; }
    connect_len = (size_t)snprintf(connect_text, sizeof connect_text,
        "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", argv[3], argv[3]);
    char before_path[120] = "";
    if (!tunnelled && !direct) snprintf(before_path, sizeof before_path, "http://%s", argv[3]);
    compose_request(before_path, argv[4], argv[3], argc > 10 ? argv[10] : NULL, argc > 11 ? argv[11] : NULL);
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
    if (resumes) {
        SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(tls, keep_session);
    }
    for (int i = 0; i < count; i++) {
        all[i].fd = -1;
        own_request(&all[i], i, count);
    }
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
