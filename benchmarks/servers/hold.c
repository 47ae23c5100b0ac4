/* A proxy that holds every reply for a time, to simulate the round trip of a network.

   hold MICROSECONDS TARGET_PORT...   prints the ports it listens on in one line, in that order.

   Requests are forwarded at once. All replies have the same delay, so one queue for all
   connections is ordered by time. A receiver that leaves more unread than the buffers of the
   kernel hold loses its connection. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum kind { LISTENER, CLIENT, MASTER, TIMER, INPUT };

struct end {
    enum kind kind;
    int fd, number;    /* LISTENER and CLIENT: of its master */
    int closed;        /* events and replies may still point to an end: it is never freed */
    struct end *peer;  /* of a proxy: the other end of the connection */
    char *bytes;       /* what has been read and is not complete */
    size_t length;
};

static int loop;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct end *new_end(enum kind kind, int fd, int number) {
    struct end *end = calloc(1, sizeof *end);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = end};
    int on = 1;
    end->kind = kind, end->fd = fd, end->number = number;
    if (kind == CLIENT || kind == MASTER) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    return end;
}

static void close_end(struct end *end) {
    if (end->closed) return;
    end->closed = 1;
    close(end->fd);
    free(end->bytes);
}

/* Listens on a free port for each number, and prints the ports in one line. */
static void listen_for(int count) {
    loop = epoll_create1(0);
    new_end(INPUT, 0, 0);
    for (int i = 0; i < count; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, (void *)&at, size) || listen(listener, 1024)) die("listen");
        getsockname(listener, (void *)&at, &size);
        new_end(LISTENER, listener, i);
        printf("%s%d", i ? " " : "", ntohs(at.sin_port));
    }
    puts("");
    fflush(stdout);
}

/* Calls a function for each end that can be read, until standard input ends. */
static void serve(void (*readable)(struct end *)) {
    for (;;) {
        struct epoll_event events[256];
        int many = epoll_wait(loop, events, 256, -1);
        for (int i = 0; i < many; i++) {
            struct end *end = events[i].data.ptr;
            if (end->kind == INPUT) return;
            if (!end->closed) readable(end);
        }
    }
}

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
