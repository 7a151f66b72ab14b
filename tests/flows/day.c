/* Preloaded by soak_bad_days.py: moves the time of day by the seconds in the file DAY_OFFSET; other clocks go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    char text[32] = {0};
    const char *path = getenv("DAY_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
