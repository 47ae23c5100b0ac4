/* A proxy that holds every reply for a time, to simulate the round trip of a network.

   hold MICROSECONDS TARGET_PORT...   prints the ports it listens on in one line, in that order.

   Requests are forwarded at once. All replies have the same delay, so one queue for all
   connections is ordered by time. A receiver that leaves more unread than the buffers of the
   kernel hold loses its connection. */

#include "serve.h"

struct held {
    struct held *next;
    struct end *to;
    uint64_t due;
    size_t length; /* 0: the master closed */
    char bytes[];
};

static int timer;
static char **ports;
static uint64_t hold_ns;
static struct held *first, **last = &first;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wake_at(uint64_t due) {
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(due / 1000000000u),
                                           .tv_nsec = (long)(due % 1000000000u)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL)) die("timerfd_settime");
}

static void close_both(struct end *end) {
    close_end(end);
    close_end(end->peer);
}

static void pass_on(struct end *to, const char *bytes, size_t length) {
    if (!to->closed && send(to->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length)
        close_both(to);
}

static void hold(struct end *to, const char *bytes, size_t length) {
    struct held *held = malloc(sizeof *held + length);
    if (!held) die("memory");
    held->next = NULL, held->to = to, held->due = now_ns() + hold_ns, held->length = length;
    memcpy(held->bytes, bytes, length);
    if (!first) wake_at(held->due);
    *last = held;
    last = &held->next;
}

static void let_go(void) {
    uint64_t now = now_ns(), ticks;
    if (read(timer, &ticks, sizeof ticks) < 0) return;
    while (first && first->due <= now) {
        struct held *held = first;
        first = held->next;
        if (!first) last = &first;
        if (held->length)
            pass_on(held->to, held->bytes, held->length);
        else
            close_both(held->to);
        free(held);
    }
    if (first) wake_at(first->due);
}

static void accept_client(struct end *listener) {
    struct sockaddr_in place = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(ports[listener->number])),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = accept(listener->fd, NULL, NULL), master = socket(AF_INET, SOCK_STREAM, 0);
    if (client >= 0 && !connect(master, (void *)&place, sizeof place)) {
        struct end *to_client = new_end(CLIENT, client, 0);
        to_client->peer = new_end(MASTER, master, 0);
        to_client->peer->peer = to_client;
        return;
    }
    close(master);
    close(client); /* a dead master: the client sees its connection end */
}

static void readable(struct end *end) {
    static char bytes[65536];
    if (end->kind == TIMER) {
        let_go();
    } else if (end->kind == LISTENER) {
        accept_client(end);
    } else {
        ssize_t got = recv(end->fd, bytes, sizeof bytes, 0);
        if (end->kind == MASTER) hold(end->peer, bytes, got > 0 ? (size_t)got : 0);
        if (end->kind == MASTER && got <= 0) close_end(end);
        if (end->kind == CLIENT && got > 0) pass_on(end->peer, bytes, (size_t)got);
        if (end->kind == CLIENT && got <= 0) close_both(end);
    }
}

int main(int count, char **words) {
    if (count < 3) return 2;
    hold_ns = strtoull(words[1], NULL, 10) * 1000;
    ports = words + 2;
    listen_for(count - 2);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    new_end(TIMER, timer, 0);
    serve(readable);
}
