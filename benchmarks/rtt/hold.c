/* A TCP proxy that delays every reply, as a network does.

   hold MICROSECONDS TARGET_PORT...   prints the ports it listens on in one line, in that order.

   It uses one thread and epoll. Requests are forwarded at once. All replies have the same delay,
   so one queue for all connections is ordered by time. It ends with its standard input. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
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
    int fd;
    int port;         /* LISTENER: the port of its master */
    struct end *peer; /* the other end of the connection */
    char *out;        /* bytes that could not be sent yet */
    size_t length, capacity;
    int closed;
};

struct held {
    struct held *next;
    struct end *to;
    uint64_t due;
    size_t length; /* 0: the master closed */
    char bytes[];
};

static int loop, timer;
static uint64_t hold_ns;
static struct held *first, **last = &first;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *need(void *memory)
{
    if (!memory)
        die("memory");
    return memory;
}

static void listen_to(struct end *end, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = end};
    if (epoll_ctl(loop, operation, end->fd, &event))
        die("epoll_ctl");
}

static struct end *new_end(enum kind kind, int fd)
{
    struct end *end = need(calloc(1, sizeof *end));
    end->kind = kind;
    end->fd = fd;
    if (kind == CLIENT || kind == MASTER) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    listen_to(end, EPOLL_CTL_ADD, EPOLLIN);
    return end;
}

/* Delayed replies may still point to an end, so it is marked and never freed. It takes a few
   bytes, and the proxy runs for one benchmark only. */
static void close_end(struct end *end)
{
    if (end->closed)
        return;
    end->closed = 1;
    close(end->fd);
    free(end->out);
    end->out = NULL;
    end->length = 0;
}

static void close_both(struct end *end)
{
    close_end(end);
    close_end(end->peer);
}

static void flush(struct end *end)
{
    size_t done = 0;
    while (done < end->length) {
        ssize_t sent = send(end->fd, end->out + done, end->length - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            close_both(end);
            return;
        }
        done += (size_t)sent;
    }
    memmove(end->out, end->out + done, end->length - done);
    end->length -= done;
    listen_to(end, EPOLL_CTL_MOD, EPOLLIN | (end->length ? EPOLLOUT : 0));
}

static void pass_on(struct end *end, const char *bytes, size_t length)
{
    if (end->closed)
        return;
    if (!end->length) {
        ssize_t sent = send(end->fd, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            close_both(end);
            return;
        }
        if (sent > 0) {
            bytes += sent;
            length -= (size_t)sent;
        }
        if (!length)
            return;
    }
    if (end->length + length > end->capacity) {
        end->capacity = 2 * (end->length + length);
        end->out = need(realloc(end->out, end->capacity));
    }
    memcpy(end->out + end->length, bytes, length);
    end->length += length;
    flush(end);
}

static void wake_at(uint64_t due)
{
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(due / 1000000000u),
                                           .tv_nsec = (long)(due % 1000000000u)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL))
        die("timerfd_settime");
}

static void hold(struct end *to, const char *bytes, size_t length)
{
    struct held *held = need(malloc(sizeof *held + length));
    held->next = NULL;
    held->to = to;
    held->due = now_ns() + hold_ns;
    held->length = length;
    memcpy(held->bytes, bytes, length);
    if (!first)
        wake_at(held->due);
    *last = held;
    last = &held->next;
}

static void let_go(void)
{
    uint64_t now = now_ns();
    while (first && first->due <= now) {
        struct held *held = first;
        first = held->next;
        if (!first)
            last = &first;
        if (held->length)
            pass_on(held->to, held->bytes, held->length);
        else
            close_both(held->to);
        free(held);
    }
    if (first)
        wake_at(first->due);
}

static void accept_client(struct end *listener)
{
    struct sockaddr_in place = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)listener->port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = accept(listener->fd, NULL, NULL);
    if (client < 0)
        return;
    int master = socket(AF_INET, SOCK_STREAM, 0);
    if (master < 0 || connect(master, (struct sockaddr *)&place, sizeof place)) {
        if (master >= 0)
            close(master);
        close(client); /* a dead master: the client sees its connection end */
        return;
    }
    struct end *to_client = new_end(CLIENT, client), *to_master = new_end(MASTER, master);
    to_client->peer = to_master;
    to_master->peer = to_client;
}

static void readable(struct end *end)
{
    static char bytes[65536];
    ssize_t got = recv(end->fd, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (end->kind == MASTER)
        hold(end->peer, bytes, got > 0 ? (size_t)got : 0);
    if (end->kind == CLIENT && got > 0)
        pass_on(end->peer, bytes, (size_t)got);
    if (end->kind == CLIENT && got <= 0)
        close_both(end);
    if (end->kind == MASTER && got <= 0)
        close_end(end);
}

int main(int count, char **words)
{
    if (count < 3) {
        fprintf(stderr, "usage: hold MICROSECONDS TARGET_PORT...\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    hold_ns = strtoull(words[1], NULL, 10) * 1000;
    loop = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (loop < 0 || timer < 0)
        die("epoll or timerfd");
    new_end(TIMER, timer);
    new_end(INPUT, 0);
    for (int place = 2; place < count; place++) {
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof any;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        if (listener < 0 || bind(listener, (struct sockaddr *)&any, size) || listen(listener, 1024))
            die("listen");
        getsockname(listener, (struct sockaddr *)&any, &size);
        new_end(LISTENER, listener)->port = atoi(words[place]);
        printf("%d%c", ntohs(any.sin_port), place + 1 < count ? ' ' : '\n');
    }
    fflush(stdout);

    for (;;) {
        struct epoll_event events[256];
        int ready = epoll_wait(loop, events, 256, -1);
        for (int place = 0; place < ready; place++) {
            struct end *end = events[place].data.ptr;
            uint64_t ticks;
            if (end->closed)
                continue;
            switch (end->kind) {
            case INPUT:
                if (read(0, &ticks, sizeof ticks) <= 0)
                    return 0;
                break;
            case TIMER:
                if (read(timer, &ticks, sizeof ticks) > 0)
                    let_go();
                break;
            case LISTENER:
                accept_client(end);
                break;
            default:
                if (events[place].events & EPOLLOUT)
                    flush(end);
                if (!end->closed && events[place].events & ~(uint32_t)EPOLLOUT)
                    readable(end);
            }
        }
    }
}
