/* What both servers need: one thread, epoll, listening sockets on free ports, and an end with
   standard input. */

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
