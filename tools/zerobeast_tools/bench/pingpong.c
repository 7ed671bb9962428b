/* Round trips between two processes over a unix socket, as fast as the kernel makes them.
 *
 *   pingpong REQUEST_BYTES REPLY_BYTES SECONDS      prints the median round trip in microseconds
 *
 * The parent writes a request and reads the reply; the child reads the request and writes the reply.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST (1 << 20)
#define WARMUP 200

static double samples[MOST];

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* Ends the process where the other one has ended. */
static void read_all(int fd, char *buffer, size_t size)
{
    while (size > 0) {
        ssize_t n = read(fd, buffer, size);
        if (n <= 0)
            exit(n < 0);
        buffer += n;
        size -= n;
    }
}

static void write_all(int fd, const char *buffer, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, buffer, size);
        if (n <= 0)
            exit(1);
        buffer += n;
        size -= n;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int ends[2], n = -WARMUP;
    if (argc != 4 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 2;
    size_t request_bytes = strtoul(argv[1], NULL, 10), reply_bytes = strtoul(argv[2], NULL, 10);
    double span_us = strtod(argv[3], NULL) * 1e6;
    char *request = malloc(request_bytes), *reply = malloc(reply_bytes);
    if (!request || !reply)
        return 2;
    memset(request, 1, request_bytes); /* memory that was never written would all be one page */
    memset(reply, 1, reply_bytes);
    pid_t child = fork();
    if (child < 0)
        return 2;
    if (child == 0) {
        close(ends[0]);
        for (;;) {
            read_all(ends[1], request, request_bytes);
            write_all(ends[1], reply, reply_bytes);
        }
    }
    close(ends[1]);
    double start = now_us(), before = start;
    while (n < 1 || (n < MOST && before - start < span_us)) {
        write_all(ends[0], request, request_bytes);
        read_all(ends[0], reply, reply_bytes);
        double after = now_us();
        if (n >= 0)
            samples[n] = after - before;
        else
            start = after;
        n++;
        before = after;
    }
    close(ends[0]);
    waitpid(child, NULL, 0);
    qsort(samples, n, sizeof *samples, ascending);
    printf("%.3f\n", samples[n / 2]);
    return 0;
}
