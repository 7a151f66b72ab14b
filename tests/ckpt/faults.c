/* Preloaded by faults.py: the n-th call of one kind fails, or writes or reads half of what it was given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = -1 };
static char armed[32];
static int left, fault, fired;

void faults_arm(const char *call, int number, int error) {
    strncpy(armed, call, sizeof armed - 1);
    left = number;
    fault = error;
    fired = 0;
}

int faults_fired(void) { return fired; }

static int met(const char *call) {
    if (!armed[0] || strcmp(call, armed) || --left) return 0;
    fired = 1;
    if (fault != SHORT) errno = fault;
    return 1;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAILING(name, call, parameters, arguments) \
    int name parameters { \
        NEXT(name); \
        return met(call) ? -1 : next arguments; \
    }
#define MOVING(call, name, parameters, arguments) \
    ssize_t name parameters { \
        NEXT(name); \
        if (met(call)) { \
            if (fault != SHORT) return -1; \
            size = (size + 1) / 2; \
        } \
        return next arguments; \
    }
#define WRITING(name, parameters, arguments) MOVING("write", name, parameters, arguments)
#define READING(name, parameters, arguments) MOVING("read", name, parameters, arguments)
#define SCATTERING(name, parameters, arguments) \
    ssize_t name parameters { \
        NEXT(name); \
        struct iovec half = *parts; \
        if (met("read")) { \
            if (fault != SHORT) return -1; \
            half.iov_len = (half.iov_len + 1) / 2; \
            parts = &half; \
            count = 1; \
        } \
        return next arguments; \
    }
#define MAPPING(name, offset) \
    void *name(void *place, size_t size, int rights, int flags, int file, offset start) { \
        NEXT(name); \
        return file >= 0 && met("map") ? MAP_FAILED : next(place, size, rights, flags, file, start); \
    }
#define OPENING(name, folder_parameter, folder_argument) \
    int name(folder_parameter const char *path, int flags, ...) { \
        NEXT(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return met("open") ? -1 : next(folder_argument path, flags, mode); \
    }
#define NONE
#define COMMA(x) x,

WRITING(write, (int file, const void *data, size_t size), (file, data, size))
WRITING(pwrite, (int file, const void *data, size_t size, off_t place), (file, data, size, place))
WRITING(pwrite64, (int file, const void *data, size_t size, off64_t place), (file, data, size, place))
READING(read, (int file, void *data, size_t size), (file, data, size))
READING(pread, (int file, void *data, size_t size, off_t place), (file, data, size, place))
READING(pread64, (int file, void *data, size_t size, off64_t place), (file, data, size, place))
SCATTERING(preadv2, (int file, const struct iovec *parts, int count, off_t place, int flags), (file, parts, count, place, flags))
SCATTERING(preadv64v2, (int file, const struct iovec *parts, int count, off64_t place, int flags), (file, parts, count, place, flags))
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)
OPENING(open, NONE, NONE)
OPENING(open64, NONE, NONE)
OPENING(openat, COMMA(int folder), COMMA(folder))
OPENING(openat64, COMMA(int folder), COMMA(folder))
int close(int file) {
    NEXT(close);
    int closed = next(file); /* the descriptor is gone whatever is said */
    return met("close") ? -1 : closed;
}
FAILING(fsync, "fsync", (int file), (file))
FAILING(ftruncate, "truncate", (int file, off_t size), (file, size))
FAILING(ftruncate64, "truncate", (int file, off64_t size), (file, size))
FAILING(flock, "flock", (int file, int operation), (file, operation))
FAILING(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
FAILING(mkdirat, "mkdir", (int folder, const char *path, mode_t mode), (folder, path, mode))
FAILING(rmdir, "remove", (const char *path), (path))
FAILING(unlink, "remove", (const char *path), (path))
FAILING(unlinkat, "remove", (int folder, const char *path, int flags), (folder, path, flags))
FAILING(rename, "rename", (const char *old, const char *new), (old, new))
FAILING(renameat, "rename", (int from, const char *old, int to, const char *new), (from, old, to, new))
FAILING(renameat2, "rename", (int from, const char *old, int to, const char *new, unsigned flags), (from, old, to, new, flags))
FAILING(link, "rename", (const char *old, const char *new), (old, new))
FAILING(linkat, "rename", (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags))
