/* Masters that grant every lock at once and store nothing: what a client can do at best.

   grant SHA_OF_ACQUIRE COUNT   prints COUNT ports in one line; each serves one master.

   It reads the commands that redlock_django sends: a grant answers the proposed fence, any other
   script "granted", INFO and join.lua what a trusted master answers. SET with NX is refused, so that
   no second holder gets in. */

#include "serve.h"

#define WORDS 64
#define ROOM 262144

struct word {
    const char *at;
    size_t length;
};

static const char *acquire;

static int is(struct word word, const char *text) {
    return word.length == strlen(text) && !strncasecmp(word.at, text, word.length);
}

static long long number(struct word word) { return strtoll(word.at, NULL, 10); }

/* Parses one command; returns its bytes, 0 if it is not complete. */
static size_t parse(const char *data, size_t length, struct word *words, int *count) {
    const char *at = data, *end = data + length, *line = memchr(at, '\n', length);
    if (!line || *at != '*') return 0;
    *count = atoi(at + 1);
    at = line + 1;
    for (int i = 0; i < *count; i++) {
        if (at >= end || !(line = memchr(at, '\n', end - at))) return 0;
        size_t size = strtoul(at + 1, NULL, 10);
        at = line + 1;
        if (at + size + 2 > end) return 0;
        if (i < WORDS) words[i] = (struct word){at, size};
        at += size + 2;
    }
    if (*count > WORDS) *count = WORDS;
    return at - data;
}

static long long micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int script(char *to, struct word *words, int count) {
    int keys = (int)number(words[2]);
    struct word *argv = words + 3 + keys;
    if (is(words[1], acquire)) { /* KEYS: 3 and 3 for each resource; ARGV[3] begins with the proposal */
        int fences = (keys - 3) / 3;
        double proposal;
        memcpy(&proposal, argv[2].at, sizeof proposal);
        if (fences == 1) { /* one string of four integers */
            long long grant[4] = {number(argv[0]), 1, micros(), (long long)proposal};
            memcpy(to, "$32\r\n", 5);
            memcpy(to + 5, grant, 32);
            memcpy(to + 37, "\r\n", 2);
            return 39;
        }
        int size = sprintf(to, "*%d\r\n:%lld\r\n:1\r\n:%lld\r\n", 3 + fences, number(argv[0]), micros());
        while (fences--) size += sprintf(to + size, ":%lld\r\n", (long long)proposal);
        return size;
    }
    if (keys == 1 && count >= 9) { /* join.lua: round, run_id, fingerprint, delay, mode */
        char marker[512];
        int size = snprintf(marker, sizeof marker, "%.*s 5 %.*s", (int)argv[1].length, argv[1].at,
                            (int)argv[2].length, argv[2].at);
        return sprintf(to, "*6\r\n:%lld\r\n:1\r\n:%lld\r\n:5\r\n$%d\r\n%s\r\n$0\r\n\r\n", number(argv[0]),
                       micros(), size, marker);
    }
    if (!argv[2].length) /* a plain release */
        return sprintf(to, ":%lld\r\n", number(argv[0]));
    return sprintf(to, "*3\r\n:%lld\r\n:1\r\n:%lld\r\n", number(argv[0]), micros());
}

static int answer(char *to, int master, struct word *words, int count) {
    if ((is(words[0], "EVALSHA") || is(words[0], "EVAL")) && count > 3)
        return script(to, words, count);
    if (is(words[0], "INFO")) {
        char info[256];
        int size = sprintf(info, "redis_version:7.0.0\r\nrun_id:%040d\r\nrole:master\r\nloading:0\r\n", master + 1);
        return sprintf(to, "$%d\r\n%s\r\n", size, info);
    }
    if (is(words[0], "HELLO")) return sprintf(to, "%%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n");
    if (is(words[0], "SUBSCRIBE"))
        return sprintf(to, ">3\r\n$9\r\nsubscribe\r\n$%zu\r\n%.*s\r\n:1\r\n", words[1].length,
                       (int)words[1].length, words[1].at);
    if (is(words[0], "SET")) return sprintf(to, "$-1\r\n");
    if (is(words[0], "SCRIPT")) return sprintf(to, "$2\r\nOK\r\n");
    return sprintf(to, "+OK\r\n");
}

/* Answers what has arrived; returns 0 if the connection has ended. */
static int answers(struct end *end) {
    static char replies[2 * ROOM];
    if (!end->bytes) end->bytes = malloc(ROOM);
    ssize_t got = recv(end->fd, end->bytes + end->length, ROOM - end->length, 0);
    if (got <= 0) return 0;
    end->length += got;
    struct word words[WORDS];
    size_t used = 0, out = 0, length;
    int count;
    while (out < ROOM && (length = parse(end->bytes + used, end->length - used, words, &count))) {
        out += answer(replies + out, end->number, words, count);
        used += length;
    }
    memmove(end->bytes, end->bytes + used, end->length -= used);
    for (size_t sent = 0; sent < out;) {
        ssize_t some = send(end->fd, replies + sent, out - sent, MSG_NOSIGNAL);
        if (some <= 0) return 0;
        sent += some;
    }
    return 1;
}

static void readable(struct end *end) {
    if (end->kind == LISTENER)
        new_end(CLIENT, accept(end->fd, NULL, NULL), end->number);
    else if (!answers(end))
        close_end(end);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    acquire = argv[1];
    listen_for(atoi(argv[2]));
    serve(readable);
}
