/* Ports of the guest's own loopback that lead to the host: --allow localhost:PORT. A process listens for all of them;
   each connection has one of its own. */

enum { SOL_SOCKET_ = 1, SO_REUSEADDR_ = 2, SO_LINGER_ = 13, IPPROTO_IPV6_ = 41, IPV6_V6ONLY_ = 26, SHUT_WR_ = 1 };
enum { MAX_FORWARDS = 64, PIECE = 16384 };

struct ipv4_end { unsigned short family; unsigned char port[2], address[4], unused[8]; };
struct ipv6_end { unsigned short family; unsigned char port[2], flow[4], address[16], scope[4]; };

static const unsigned char LOCALHOST4[4] = {127, 0, 0, 1}, HOST4[4] = {10, 0, 2, 2};

static struct ipv4_end ipv4_end(const unsigned char *address, int port) {
    struct ipv4_end end = {AF_INET_, {(unsigned char)(port >> 8), (unsigned char)port}, {0}, {0}};
    memcpy(end.address, address, 4);
    return end;
}

static word listen_on(int family, int port) {
    struct ipv4_end end4 = ipv4_end(LOCALHOST4, port);
    struct ipv6_end end6 = {AF_INET6_, {(unsigned char)(port >> 8), (unsigned char)port}, {0}, {0}, {0}};
    int yes = 1;
    word listener = CALL3(NR_socket, family, SOCK_STREAM_ | CLOEXEC_ | O_NONBLOCK_, 0);
    if (listener < 0) return listener;
    end6.address[15] = 1;
    call(NR_setsockopt, listener, SOL_SOCKET_, SO_REUSEADDR_, (word)&yes, sizeof yes, 0);
    if (family == AF_INET6_) call(NR_setsockopt, listener, IPPROTO_IPV6_, IPV6_V6ONLY_, (word)&yes, sizeof yes, 0);
    word error = family == AF_INET_ ? CALL3(NR_bind, listener, &end4, sizeof end4) : CALL3(NR_bind, listener, &end6, sizeof end6);
    if (error >= 0) error = CALL2(NR_listen, listener, 128);
    if (error >= 0) return listener;
    CALL1(NR_close, listener);
    return error;
}

/* Bytes one way; at their end the other side is told. 0: that was the end */
static int pass_on(word from, word to) {
    char bytes[PIECE];
    word count = CALL3(NR_read, from, bytes, sizeof bytes);
    if (count > 0 && write_whole(to, bytes, (size)count) == 0) return 1;
    CALL2(NR_shutdown, to, SHUT_WR_);
    return 0;
}

/* One process each way: neither ever waits for the other. */
static void relay(word near, int port) {
    struct ipv4_end end = ipv4_end(HOST4, port);
    struct { int is_on, seconds; } at_once = {1, 0};
    word far = CALL3(NR_socket, AF_INET_, SOCK_STREAM_ | CLOEXEC_, 0);
    if (far < 0 || CALL3(NR_connect, far, &end, sizeof end) < 0) {
        /* It has been let in already: what comes nearest to a refusal is a reset. */
        call(NR_setsockopt, near, SOL_SOCKET_, SO_LINGER_, (word)&at_once, sizeof at_once, 0);
        leave(0);
    }
    word other = call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0);
    if (other == 0) while (pass_on(far, near)) {}
    else if (other > 0) while (pass_on(near, far)) {}
    leave(0);
}

static void accept_for_ever(struct wait *listeners, const int *local_ports, size count) {
    struct action ignore;
    unsigned long none = 0;
    memset(&ignore, 0, sizeof ignore);
    ignore.handler = (void *)1;
    CALL4(NR_rt_sigaction, SIGCHLD_, &ignore, 0, 8); /* the kernel reaps them */
    CALL4(NR_rt_sigprocmask, SIG_SETMASK_, &none, 0, 8);
    for (int i = 0; i < PORTS; i++) CALL1(NR_close, ports[i]);
    for (;;) {
        wait_for(listeners, count, -1);
        for (size i = 0; i < count; i++) {
            if (!listeners[i].found) continue;
            word near = CALL4(NR_accept4, listeners[i].descriptor, 0, 0, CLOEXEC_);
            if (near == -EAGAIN_ || near == -EINTR_) continue;
            if (near < 0) sleep_ms(20); /* no descriptors or no memory: there will be again */
            else if (call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0) == 0) relay(near, local_ports[i]);
            if (near >= 0) CALL1(NR_close, near);
        }
    }
}

static void start_relays(void) {
    struct wait listeners[2 * MAX_FORWARDS];
    int local_ports[2 * MAX_FORWARDS];
    size count = 0;
    struct values values = values_of("forward");
    for (const char *value; (value = next_value(&values));) {
        const char *at = value;
        word port = take_number(&at, 10);
        if (*at || port < 1 || port > 65535 || count + 2 > 2 * MAX_FORWARDS) fail(EINVAL_, "this port cannot be forwarded: ", value);
        for (int i = 0; i < 2; i++) {
            word listener = listen_on(i ? AF_INET6_ : AF_INET_, (int)port);
            if (i && listener == -EAFNOSUPPORT_) continue;
            need(listener, "this port of the loopback cannot be listened on: ", value);
            listeners[count] = (struct wait){(int)listener, POLLIN_, 0};
            local_ports[count++] = (int)port;
        }
    }
    if (!count) return;
    word relays = call(NR_clone, SIGCHLD_, 0, 0, 0, 0, 0);
    need(relays, "no process for forwarded ports", "");
    if (relays == 0) accept_for_ever(listeners, local_ports, count);
    for (size i = 0; i < count; i++) CALL1(NR_close, listeners[i].descriptor);
}
