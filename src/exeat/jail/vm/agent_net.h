/* The guest's network: the loopback, one card with addresses that are known beforehand, and who is asked for names. */

enum { AF_INET_ = 2, AF_INET6_ = 10, AF_NETLINK_ = 16, SOCK_STREAM_ = 1, SOCK_RAW_ = 3, SIOCGIFINDEX_ = 0x8933, CARD_MS = 2000 };
enum { RTM_NEWLINK_ = 16, RTM_NEWADDR_ = 20, RTM_NEWROUTE_ = 24, NLM_F_REQUEST_ = 1, NLM_F_ACK_ = 4, NLM_F_CREATE_ = 0x400 };
enum { IFA_ADDRESS_ = 1, IFA_LOCAL_ = 2, RTA_OIF_ = 4, RTA_GATEWAY_ = 5, IFF_UP_ = 1, IFA_F_NODAD_ = 2, LOOPBACK = 1 };

struct address { unsigned char family, length, prefix, bytes[16]; };

/* Addresses as text */

static const char *take_ipv4(const char *text, unsigned char *bytes) {
    for (int i = 0; i < 4; i++) {
        if (i && *text++ != '.') return 0;
        word number = take_number(&text, 10);
        if (number < 0 || number > 255) return 0;
        bytes[i] = (unsigned char)number;
    }
    return text;
}

static const char *take_ipv6(const char *text, unsigned char *bytes) {
    int count = 0, gap = -1;
    memset(bytes, 0, 16);
    while (count < 16) {
        if (text[0] == ':' && text[1] == ':' && gap < 0) {
            gap = count;
            text += 2;
        } else if (count && count != gap && *text == ':') text++;
        unsigned group = 0;
        int digits = 0;
        for (; digits < 4 && hex_digit(*text) >= 0; digits++) group = group << 4 | (unsigned)hex_digit(*text++);
        if (!digits) break;
        bytes[count++] = (unsigned char)(group >> 8);
        bytes[count++] = (unsigned char)group;
    }
    if (gap < 0) return count == 16 ? text : 0;
    for (int i = 15, from = count - 1; from >= gap; i--, from--) {
        bytes[i] = bytes[from];
        if (i != from) bytes[from] = 0;
    }
    return text;
}

static const char *take_address(const char *text, int family, struct address *address) {
    address->family = (unsigned char)family;
    address->length = family == AF_INET_ ? 4 : 16;
    return family == AF_INET_ ? take_ipv4(text, address->bytes) : take_ipv6(text, address->bytes);
}

/* Requests to the kernel */

struct request { unsigned length; unsigned short kind, flags; unsigned sequence, sender; unsigned char body[128]; };

static struct request request_of(int kind, const void *head, unsigned length) {
    struct request request;
    memset(&request, 0, sizeof request);
    request.kind = (unsigned short)kind;
    request.flags = NLM_F_REQUEST_ | NLM_F_ACK_ | (kind == RTM_NEWLINK_ ? 0 : NLM_F_CREATE_);
    request.length = 16 + length;
    memcpy(request.body, head, length);
    return request;
}

static void add_attribute(struct request *request, unsigned short kind, const void *bytes, unsigned short count) {
    unsigned short head[2] = {(unsigned short)(4 + count), kind};
    unsigned char *at = request->body + request->length - 16;
    memcpy(at, head, 4);
    memcpy(at + 4, bytes, count);
    request->length += 4u + ((count + 3u) & ~3u);
}

static word ask(word channel, const struct request *request) {
    struct { unsigned length; unsigned short kind, flags; unsigned sequence, sender; int error; char rest[256]; } answer;
    word count = CALL3(NR_write, channel, request, request->length);
    if (count >= 0) count = CALL3(NR_read, channel, &answer, sizeof answer);
    return count < 0 ? count : count < 20 ? -EPROTO_ : answer.error;
}

static word raise_link(word channel, int index) {
    struct { unsigned char family, unused; unsigned short kind; int index; unsigned flags, change; } head;
    memset(&head, 0, sizeof head);
    head.index = index;
    head.flags = head.change = IFF_UP_;
    struct request request = request_of(RTM_NEWLINK_, &head, sizeof head);
    return ask(channel, &request);
}

/* No waiting for another one who might have the address: there is none in a network of one. */
static word set_address(word channel, int index, const struct address *address) {
    struct { unsigned char family, prefix, flags, scope; int index; } head;
    head.family = address->family;
    head.prefix = address->prefix;
    head.flags = address->family == AF_INET6_ ? IFA_F_NODAD_ : 0;
    head.scope = 0;
    head.index = index;
    struct request request = request_of(RTM_NEWADDR_, &head, sizeof head);
    add_attribute(&request, IFA_LOCAL_, address->bytes, address->length);
    add_attribute(&request, IFA_ADDRESS_, address->bytes, address->length);
    return ask(channel, &request);
}

static word set_gateway(word channel, int index, const struct address *gateway) {
    unsigned char head[12] = {gateway->family, 0, 0, 0, 254 /* main table */, 4 /* static */, 0, 1 /* unicast */, 0, 0, 0, 0};
    struct request request = request_of(RTM_NEWROUTE_, head, sizeof head);
    add_attribute(&request, RTA_GATEWAY_, gateway->bytes, gateway->length);
    add_attribute(&request, RTA_OIF_, &index, sizeof index);
    return ask(channel, &request);
}

/* "ADDRESS/PREFIX,GATEWAY" */
static word configure(word channel, int index, int family, const char *value) {
    struct address own, gateway;
    const char *at = take_address(value, family, &own);
    if (!at || *at++ != '/') return -EINVAL_;
    word prefix = take_number(&at, 10);
    if (prefix < 0 || prefix > own.length * 8 || *at++ != ',') return -EINVAL_;
    own.prefix = (unsigned char)prefix;
    at = take_address(at, family, &gateway);
    if (!at || *at) return -EINVAL_;
    word error = set_address(channel, index, &own);
    if (!error || error == -EEXIST_) error = set_gateway(channel, index, &gateway);
    return error == -EEXIST_ ? 0 : error;
}

static int index_of_card(word channel) {
    struct { char name[16]; int index; char rest[20]; } request = {"eth0", 0, {0}};
    for (word limit = now_ms() + CARD_MS; CALL3(NR_ioctl, channel, SIOCGIFINDEX_, &request) < 0; sleep_ms(2))
        if (now_ms() > limit) fail(ENODEV_, "there is no network card eth0 (is the module virtio_net there?)", "");
    return request.index;
}

static void raise_loopback(void) {
    word channel = CALL3(NR_socket, AF_NETLINK_, SOCK_RAW_ | CLOEXEC_, 0);
    need(channel, "no network can be set up", "");
    need(raise_link(channel, LOOPBACK), "the loopback interface cannot be raised", "");
    CALL1(NR_close, channel);
}

/* Once with what the firmware says, and not again when the host says START and has nothing else to say: so a machine that
   is saved before that has its network already. */
static void set_card(void) {
    static const char *last4 = "", *last6 = "";
    const char *net4 = value_of("net4"), *net6 = value_of("net6");
    if (is_same(net4 ? net4 : "", last4) && is_same(net6 ? net6 : "", last6)) return;
    last4 = net4 ? net4 : "";
    last6 = net6 ? net6 : "";
    word channel = CALL3(NR_socket, AF_NETLINK_, SOCK_RAW_ | CLOEXEC_, 0);
    int card = index_of_card(channel);
    write_file("/proc/sys/net/ipv6/conf/eth0/accept_ra", "0"); /* who routes is said here, once */
    write_file("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
    need(raise_link(channel, card), "eth0 cannot be raised", "");
    if (net4) need(configure(channel, card, AF_INET_, net4), "eth0 cannot have this address and route: ", net4);
    word error = net6 ? configure(channel, card, AF_INET6_, net6) : 0;
    if (error == -EOPNOTSUPP_ || error == -EAFNOSUPPORT_) note("this kernel has no IPv6", "", 0);
    else need(error, "eth0 cannot have this address and route: ", net6);
    CALL1(NR_close, channel);
}
